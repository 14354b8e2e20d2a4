#!/bin/bash
# labels: release
# The table of tools/mutate keeps up with the code: every fault's text stands once where the table says, and the check minds
# a table that does not. Planting the faults is done by hand. Without python3: skipped (77).
set -u
command -v python3 >/dev/null || exit 77
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
status=0

python3 "$SOURCE/tools/mutate" --check || status=1

# minds EXPECTED: the check of $box/table fails and says so
minds() {
    local said
    if said=$(python3 "$SOURCE/tools/mutate" --check --list "$box/table" 2>&1); then
        echo "the check did not mind: $1"
        status=1
    elif ! grep -qF "$1" <<<"$said"; then
        echo "the check said: $said, expected $1"
        status=1
    fi
}
good=$'file src/model/noise.c\nold  enum { ROUNDS = 10 };\nnew  enum { ROUNDS = 9 };\nwhy  noise\n'
printf '%s' "$good" >"$box/table"
minds '1 faults, expected at least 60'
printf '%s' "${good/ROUNDS = 10/ROUNDS = 11}" >"$box/table"
minds 'stands 0 times in src/model/noise.c, expected once'
printf '%s' "${good/enum \{ ROUNDS = 10 \};/uint32_t}" >"$box/table"
minds 'times in src/model/noise.c, expected once'
printf '%s' "${good/noise.c/nothing.c}" >"$box/table"
minds 'src/model/nothing.c does not exist'
printf '%s' "${good/ROUNDS = 9/ROUNDS = 10}" >"$box/table"
minds 'old and new are the same'
printf '%s' "${good/why  noise/ask  test_nothing}" >"$box/table"
minds 'the paragraph lacks why'
printf '%sask  test_nothing\n' "$good" >"$box/table"
minds 'no judge is called test_nothing'
printf '%show  quickly\n' "$good" >"$box/table"
minds 'expected one of file, old, new, why, ask, lives'
exit $status
