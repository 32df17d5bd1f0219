"""One page that shows what a run did: it reads run directories and nothing else."""

from paploss.report.page import write_report

__all__ = ["write_report"]
