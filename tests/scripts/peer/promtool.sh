#!/bin/bash
# Prometheus' own promtool likes the text that the server's metrics are written as. BUILD: as the other scripts. Without promtool:
# skipped (77).
set -u
command -v promtool >/dev/null || { echo "SKIPPED: there is no promtool"; exit 77; }
text=$("$BUILD/tests/test_metrics" --show) || { echo "FAILED: test_metrics --show ended with $?"; exit 1; }
promtool check metrics <<<"$text" || { echo "FAILED: promtool check metrics ended with $?"; exit 1; }
