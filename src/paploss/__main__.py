"""``python -m paploss``, for launchers such as accelerate's."""

from paploss.cli import main

if __name__ == "__main__":
    main()
