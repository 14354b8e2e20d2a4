#!/bin/bash
# labels: release
# One number of parameters everywhere: what MODEL.md's sizes come to, what inspect says, and what the texts say.
set -u
openpi=$BUILD/openpi
status=0
fail() { echo "$*"; status=1; }

# Elements of every tensor that inference uses, from the released sizes alone. $1: 1 for π0.5.
count() {
    local v=1152 vm=4304 w=2048 m=16384 e=1024 em=4096 vocab=257152 depth=18 q=2048 kv=256 a=32
    local tower=$((v * 3 * 14 * 14 + v + 256 * v + 27 * (4 * (v * v + v) + v * vm + vm + vm * v + v + 4 * v) + 2 * v))
    local language=$((depth * (2 * w * q + 2 * w * kv + 3 * w * m + 2 * w) + w))
    local norms=$(($1 ? 2 * (3 * e * e + 3 * e) : 2 * e)) last=$(($1 ? 3 * e * e + 3 * e : e))
    local expert=$((depth * (2 * e * q + 2 * e * kv + 3 * e * em + norms) + last))
    local ends=$((a * e + e + e * a + a + ($1 ? 2 * (e * e + e) : a * e + e + 2 * e * e + e + e * e + e)))
    echo $((tower + w * v + w + vocab * w + language + expert + ends))
}
allowed=
for variant in 0 1; do
    name=$([ $variant = 1 ] && echo pi05 || echo pi0)
    used=$(count $variant)
    $openpi inspect --synthetic "full:$name" --json | grep -q "\"parameters\": $used,\?$" || fail "$name: inspect does not say $used"
    text=$(awk "BEGIN {printf \"%.2f\", $used / 1e9}")
    $openpi inspect --synthetic "full:$name" | grep -q "^parameters  *$text billion$" || fail "$name: inspect does not say $text billion"
    allowed="$allowed $text $(awk "BEGIN {printf \"%.2f\", ($used + 257152 * 1024) / 1e9}")"
done
cd "$SOURCE" || exit 2
while IFS=: read -r file line text; do
    number=${text%% *}
    case " $allowed " in *" $number "*) ;; *) fail "$file:$line: $text parameters, expected one of$allowed" ;; esac
done < <(grep -noE '[0-9.]+ (billion|Milliarden|B parameters|G parameters)' README.md MODEL.md ARCHITECTURE.md docs/*.md tools/demo cli/*.[ch] cli/*/*.[ch] lab/*/*.[ch] \
             src/*.[ch] src/*/*.[ch] src/*/*/*.[ch] include/*.h)
grep -q '3.24 billion' README.md || fail "README.md does not say how many parameters there are"
exit $status
