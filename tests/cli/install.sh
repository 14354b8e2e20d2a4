#!/bin/bash
# An installed tree serves a stranger: the README's example, compiled and linked as the README says, against either library.
set -u
box=$(mktemp -d /tmp/openpi_test_XXXXXX) || exit 1
trap 'rm -rf "$box"' EXIT
fail() {
    echo "$*"
    exit 1
}

DESTDIR=$box/tree cmake --install "$BUILD" --prefix /opt/openpi >"$box/log" 2>&1 || fail "install: $(cat "$box/log")"
root=$box/tree/opt/openpi
for page in "" -run -inspect -synth -verify -bench -roof -devices -profile -trace; do
    grep -q "^\.SH SEE ALSO" "$root/share/man/man1/openpi$page.1" || fail "openpi$page.1 is not a man page"
done
PKG_CONFIG_PATH=$(dirname "$(find "$root" -name openpi.pc)")
export PKG_CONFIG_PATH
[ "$(pkg-config --modversion openpi)" = "$("$root/bin/openpi" --version | cut -d' ' -f2)" ] || fail "openpi.pc has another version"

cd "$box" || exit 1
sed -n '/^```c$/,/^```$/p' "$SOURCE/README.md" | sed '/^```/d' >example.c
grep -q openpi_policy_infer example.c || fail "README.md holds no C example"
"$root/bin/openpi" synth checkpoint --preset tiny >/dev/null || fail "synth failed"
libdir=$(pkg-config --variable=libdir openpi)

# shellcheck disable=SC2046
$CC -std=c11 -Wall -Wextra -Werror example.c -o shared $(pkg-config --cflags --libs openpi) || fail "README's example does not compile"
LD_LIBRARY_PATH=$libdir ./shared >shared.txt || fail "README's example failed"
grep -Eq '^first action: -?[0-9]' shared.txt || fail "README's example printed: $(cat shared.txt)"

# The same lines as C++, by every compiler that is here.
compiled=
for cxx in g++ clang++; do
    command -v $cxx >/dev/null || continue
    compiled=1
    for standard in c++11 c++20; do
        # shellcheck disable=SC2046
        $cxx -std=$standard -Wall -Wextra -Werror -x c++ example.c -x none -o plus $(pkg-config --cflags --libs openpi) ||
            fail "README's example is no $standard to $cxx"
    done
    LD_LIBRARY_PATH=$libdir ./plus >plus.txt || fail "README's example built by $cxx failed"
    cmp shared.txt plus.txt || fail "C and C++ differ"
done
[ -n "$compiled" ] || fail "there is no C++ compiler here, neither g++ nor clang++"

# Every struct of the header has its macro, and the macro is an initialiser in C and in C++.
header=$root/include/openpi.h
structs=$(grep -oE '^typedef struct openpi_[a-z_]+ \{' "$header" | cut -d' ' -f3)
[ "$(wc -w <<<"$structs")" -ge 15 ] || fail "openpi.h has the structs $structs, expected 15 or more"
{
    echo '#include <openpi.h>'
    for struct in $structs; do
        macro=$(tr '[:lower:]' '[:upper:]' <<<"$struct")_INIT
        echo "static const $struct constant_$struct = $macro;"
        echo "int size_of_$struct(void); int size_of_$struct(void) { $struct s = $macro; return s.size == sizeof s && constant_$struct.size == sizeof s; }"
    done
} >macros.c
for compiler in "$CC -std=c11" "g++ -std=c++11 -x c++" "clang++ -std=c++20 -x c++"; do
    command -v ${compiler%% *} >/dev/null || continue
    $compiler -Wall -Wextra -Werror -pedantic -I"$root/include" -c macros.c -o macros.o || fail "$compiler: a macro of openpi.h is no initialiser"
done

mkdir static && cp "$libdir/libopenpi.a" static/
# shellcheck disable=SC2046
$CC -std=c11 example.c -o alone $(pkg-config --cflags openpi) static/libopenpi.a $(pkg-config --static --libs openpi | sed 's/-lopenpi//') ||
    fail "README's example does not link with libopenpi.a"
./alone >alone.txt || fail "README's example with libopenpi.a failed"
cmp shared.txt alone.txt || fail "the two libraries differ"

# A caller's own functions may be called as the library's inner ones.
echo '#include <openpi.h>' >own.c
echo 'int report(void), pool_run(void), json_read(void); int report(void) { return 0; } int pool_run(void) { return 0; } int json_read(void) { return 0; }
int main(void) { int n; return openpi_devices(0, 0, &n, 0) || n < 1 || report() || pool_run() || json_read(); }' >>own.c
# shellcheck disable=SC2046
$CC -std=c11 own.c -o own $(pkg-config --cflags openpi) static/libopenpi.a $(pkg-config --static --libs openpi | sed 's/-lopenpi//') ||
    fail "names of the library's inside collide with a caller's"
./own || fail "a caller's own names broke the library"
