"""Average Precision as the benchmarks define it; faster-coco-eval does the counting."""
