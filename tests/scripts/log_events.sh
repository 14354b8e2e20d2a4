#!/bin/bash
# labels: release
# The events of the server's log stand in docs/serve.md, each of them and no other.
set -u
cd "$SOURCE" || exit 1
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT

# events FILE...: what an entry's event is set to, and the event of log_line and say_address
events() {
    {
        sed -nE 's/.*\.event = ([^,}]*).*/\1/p; s/.*->event, sizeof [^,]*, "%s", (.*)/\1/p' "$@" | grep -oE '"[^"]+"'
        sed -nE 's/.*(log_line|say_address)\([^"]*("[^"]+").*/\2/p' "$@"
    } | tr -d '"' | sort -u
}
# rows FILE: the first column of the table of events
rows() { awk '/^\| `event` \|/ { on = 1; next } on && !/^\|/ { exit } on { print $0 }' "$1" | cut -d'|' -f2 | grep -oE '`[^`]+`' | tr -d '`' | sort; }

events $(find serve -name "*.c" | sort) >"$box/code"
rows docs/serve.md >"$box/page"
diff "$box/page" "$box/code" >"$box/diff" || { echo "docs/serve.md (<) and serve/*.c (>) have different events:"; cat "$box/diff"; exit 1; }

# What must be noticed is noticed: one event more in a file, and one less on the page.
printf 'void f(void) {\n    log_line(log, "planted", "x");\n    log_entry e = {.event = fine ? "one" : "other"};\n}\n' >"$box/planted.c"
[ "$(events "$box/planted.c" | paste -sd,)" = one,other,planted ] || { echo "of the planted events it finds: $(events "$box/planted.c")"; exit 1; }
sed 's/^| `ended` .*//' docs/serve.md >"$box/serve.md"
rows "$box/serve.md" | diff -q - "$box/code" >/dev/null && { echo "a missing row is not noticed"; exit 1; }
echo "$(wc -l <"$box/code") events"
