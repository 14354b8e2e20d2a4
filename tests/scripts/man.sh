#!/bin/bash
# labels: release
# The verbs stand once, in cli/main.c: every one has a man page, none is left over or stale, and help and man page of a verb
# are the same text. Where groff is, it finds nothing to complain about.
set -u
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
openpi=$BUILD/openpi
status=0
fail() { echo "$*"; status=1; }

verbs=$("$openpi" --verbs)
[ "$(wc -l <<<"$verbs")" -ge 12 ] || fail "--verbs lists $verbs"
[ "$(sort -u <<<"$verbs" | wc -l)" = "$(wc -l <<<"$verbs")" ] || fail "--verbs lists a verb twice"
expected=$( (echo openpi.1; sed 's/.*/openpi-&.1/' <<<"$verbs") | sort)
[ "$(ls "$BUILD/man" | sort)" = "$expected" ] || fail "build/man holds $(ls "$BUILD/man"), expected $expected"

# Words of a page, sorted, without headings, marks of the form and the line of the name.
help_words() { # VERB MAN-PAGE: that page's headings of options are the help's
    { printf '%s:\n' Usage Examples Options Other 'Exit status'; sed -n 's/^\.SS \(.*\)/\1:/p' "$2"; } >"$box/headings"
    "$openpi" "$1" --help | tail -n +2 | grep -vxFf "$box/headings" | sed 's/^  # /  /' | tr -s ' \n' '\n\n' | grep . | sort
}
man_words() {
    sed -n '/^\.SH SYNOPSIS/,/^\.SH SEE ALSO/p' "$1" | grep -vE '^\.(SH|SS|PP|nf|fi|RS|RE|TP|br)' |
        sed 's/^\.B //; s/\\f[BIR]//g; s/\\-/-/g; s/\\&//g; s/\\e/\\/g' | tr -s ' \n' '\n\n' | grep . | sort
}
for verb in $verbs; do
    page=$BUILD/man/openpi-$verb.1
    "$openpi" "$verb" --man | cmp -s - "$page" || fail "openpi-$verb.1 is not what 'openpi $verb --man' prints"
    [ "$("$openpi" help "$verb")" = "$("$openpi" "$verb" --help)" ] || fail "'openpi help $verb' is not 'openpi $verb --help'"
    help_words "$verb" "$page" >"$box/help"
    man_words "$page" >"$box/man"
    [ "$(wc -l <"$box/help")" -gt 60 ] || fail "'openpi $verb --help' says little"
    diff "$box/help" "$box/man" >"$box/diff" || fail "openpi-$verb.1 and 'openpi $verb --help' differ: $(cat "$box/diff")"
    name=$("$openpi" "$verb" --help | head -1 | sed 's/^openpi /openpi-/')
    [ "$(sed -n '/^\.SH NAME/{n;s/\\-/-/g;p}' "$page")" = "$name" ] || fail "openpi-$verb.1 has another name than '$name'"
    grep -qE "openpi $verb|\[\`$verb\`\]" "$SOURCE"/README.md "$SOURCE"/docs/*.md || fail "no page names 'openpi $verb'"
    grep -qF "\\fB$verb\\fR" "$BUILD/man/openpi.1" || fail "openpi.1 does not list $verb"
done
if command -v groff >/dev/null; then
    for page in "$BUILD"/man/*.1; do
        groff -man -Kutf8 -Tutf8 -ww -z "$page" >"$box/said" 2>&1 && [ ! -s "$box/said" ] || fail "groff: $(cat "$box/said")"
    done
fi
exit $status
