#!/bin/bash
# labels: release
# What the built libraries show and hold: only openpi_* for others to link with, not one global variable, no instruments;
# how large the shared one is, what it needs, its soname.
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
        echo "$library: $count public functions, expected the whole of openpi.h and openpi_runner.h"
        status=1
    fi
    for name in $(grep -ohE '^OPENPI_API [^;]*\(' "$SOURCE"/include/openpi_{engine,policy,tools,runner}.h | grep -oE 'openpi_[a-z0-9_]+\($' | tr -d '('); do
        grep -q " $name\$" <<<"$names" || { echo "$library: $name of the public headers is not there" && status=1; }
    done
    if other=$(strangers <<<"$names"); then
        echo "$library: exports more than openpi_*:" $other
        status=1
    fi
done

# Writable data that is no constant: .data and .bss. (.data.rel.ro is constant once loaded.)
if globals=$(objdump -t libopenpi.a | awk 'NF > 2 && $(NF - 2) ~ /^\.(data|bss|tdata|tbss)(\..*)?$/ && $(NF - 2) !~ /^\.data\.rel\.ro/ && $(NF - 1) !~ /^0+$/ { print $NF }' | grep .); then
    echo "libopenpi.a: global variables:" $globals
    status=1
fi
# What the shared library depends on: its own code, none of the instruments', and a short list of others. Loaded
# bytes (text, data), less the embedded images of GPU kernels and tuning tables: 1,111,000 with gcc 12 at -O2, a tenth more
# is allowed.
loaded=$(size libopenpi.so | awk 'NR == 2 { print $1 + $2 }')
embedded=$(cat cuda/*.fatbin cuda12/*.fatbin hip/*_gfx*.co tune/*.json 2>/dev/null | wc -c)
if [ $((loaded - embedded)) -gt 1220000 ]; then
    echo "libopenpi.so: $((loaded - embedded)) bytes are loaded, less $embedded of GPU images and tables, expected at most 1220000"
    status=1
fi
if nm libopenpi.so libopenpi.a | grep -E ' (nvml|power_counter|bench_run|verify_path|ladder_run|tune_run|energy_run)'; then
    echo "libopenpi: holds instruments, which are libopenpi_measure.a's"
    status=1
fi
# Versions after .so differ between distributions. libdl is part of libc since glibc 2.34; libzstd is optional.
needed=$(objdump -p libopenpi.so | awk '$1 == "NEEDED" { sub(/\.so.*/, "", $2); print $2 }' | grep -v -e '^libdl$' -e '^libzstd$' | sort | tr '\n' ' ')
expected='libc libjansson libm libmsgpack libpng16 libturbojpeg '
if [ "${needed/libmsgpackc /libmsgpack }" != "$expected" ] && [ "${needed/libmsgpack-c /libmsgpack }" != "$expected" ]; then
    echo "libopenpi.so: needs $needed, expected $expected"
    status=1
fi
# The soname (CONTRIBUTING.md): 0.MINOR before 1.0, MAJOR from then on.
version=$(./openpi --version | cut -d' ' -f2)
soname=$(objdump -p libopenpi.so | awk '$1 == "SONAME" { print $2 }')
case $version in
0.*) expected=libopenpi.so.${version%.*} ;;
*) expected=libopenpi.so.${version%%.*} ;;
esac
[ "$soname" = "$expected" ] || { echo "libopenpi.so: its soname is $soname, expected $expected" && status=1; }
exit $status
