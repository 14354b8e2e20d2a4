#!/bin/bash
# labels: release
# No call depends on the program's locale: tests of numbers, files and policies in programs of tr_TR, whose 'I' is no capital
# 'i', and de_DE, whose numbers have a comma. The locales are made here, in a folder of their own.
set -u
command -v localedef >/dev/null || { echo "skipped: localedef is not installed" && exit 77; }
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
status=0
cd "$box" || exit 1
for locale in tr_TR.UTF-8 de_DE.UTF-8; do
    localedef -c -i "${locale%%.*}" -f "${locale#*.}" "$box/$locale" 2>"$box/said"
    [ -e "$box/$locale/LC_CTYPE" ] || { echo "skipped: localedef does not make $locale: $(head -1 "$box/said")" && exit 77; }
    for test in base json lerobot normalize robots extras wire inspect; do
        LOCPATH=$box LC_ALL=$locale LD_PRELOAD=$WITH_LOCALE "$BUILD/tests/test_$test" >"$box/said" 2>&1 && continue
        echo "test_$test, $locale:" && grep -v '\[ *\(RUN\|OK\)' "$box/said" | tail -20
        status=1
    done
done
exit $status
