#!/bin/bash
# What the built libraries show and hold: only openpi_* for others to link with, and not one global variable.
set -u
cd "$BUILD" || exit 1
status=0

strangers() { # what nm lists, less the public names
    awk 'NF >= 2 { print $NF }' | grep -v '^openpi_[a-z0-9_]*$'
}
for library in libopenpi.so libopenpi.a; do
    case $library in
    *.so) names=$(nm -D --defined-only $library) ;;
    *.a) names=$(nm -g --defined-only $library | grep -v ':$') ;;
    esac || exit 1
    count=$(grep -c ' openpi_' <<<"$names")
    if [ "$count" -lt 20 ]; then
        echo "$library: $count public functions, expected the whole of openpi.h"
        status=1
    fi
    for name in $(grep -oE '^OPENPI_API [^;]*\(' "$SOURCE/include/openpi.h" | grep -oE 'openpi_[a-z0-9_]+\($' | tr -d '('); do
        grep -q " $name\$" <<<"$names" || { echo "$library: $name of openpi.h is not there" && status=1; }
    done
    if other=$(strangers <<<"$names"); then
        echo "$library: exports more than openpi_*:" $other
        status=1
    fi
done

# Writable data that is no constant: .data and .bss. (.data.rel.ro is constant once loaded.)
if globals=$(objdump -t libopenpi.a | awk '$(NF - 2) ~ /^\.(data|bss|tdata|tbss)(\..*)?$/ && $(NF - 2) !~ /^\.data\.rel\.ro/ && $(NF - 1) !~ /^0+$/ { print $NF }' | grep .); then
    echo "libopenpi.a: global variables:" $globals
    status=1
fi
exit $status
