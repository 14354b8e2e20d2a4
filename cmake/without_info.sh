#!/bin/sh
# without_info.sh COMMAND...: runs a compiler, without the lines of ptxas that only inform (its remarks on wgmma, by the dozen).
said=$("$@" 2>&1)
status=$?
[ -z "$said" ] || printf '%s\n' "$said" | grep -v '^ptxas info' >&2
exit $status
