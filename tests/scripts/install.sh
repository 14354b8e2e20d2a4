#!/bin/bash
# labels: release
# An installed tree serves a stranger: the README's example, compiled and linked as the README says, against either library.
set -u
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
fail() {
    echo "$*"
    exit 1
}

DESTDIR=$box/tree cmake --install "$BUILD" --prefix /opt/openpi >"$box/log" 2>&1 || fail "install: $(cat "$box/log")"
root=$box/tree/opt/openpi
for page in "" $("$root/bin/openpi" --verbs | sed 's/^/-/'); do
    grep -q "^\.SH SEE ALSO" "$root/share/man/man1/openpi$page.1" || fail "openpi$page.1 is not a man page"
done
pages=$(find "$root/share/man" -name '*.1' | wc -l)
[ "$pages" -eq $(($("$root/bin/openpi" --verbs | wc -l) + 1)) ] || fail "$pages man pages, expected one a verb and one of all"
grep -q 'LD_LIBRARY_PATH\|is not in PATH' "$box/log" && fail "under DESTDIR nothing concerns this machine: $(cat "$box/log")"
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

# The header's example, with a picture and a state.
{
    echo '#include <openpi.h>'
    echo '#include <stdio.h>'
    echo 'static unsigned char rgb[480 * 640 * 3];'
    echo 'int main(void) { double state[8] = {0};'
    sed -n '/^ \*     openpi_image image/,/^ \*     openpi_engine_close/s/^ \* *//p' "$root/include/openpi.h"
    echo 'return 0; }'
} >header.c
# shellcheck disable=SC2046
$CC -std=c11 -Wall -Wextra -Werror header.c -o header $(pkg-config --cflags --libs openpi) || fail "openpi.h's example does not compile"
LD_LIBRARY_PATH=$libdir ./header >header.txt 2>&1 && grep -Eq '^first action: -?[0-9]' header.txt ||
    fail "openpi.h's example printed: $(cat header.txt)"

# The runner's example, with a program around it. The header is the only one that it includes.
{
    echo '#include <openpi_runner.h>'
    echo 'void complain(const char *), send_to_the_arm(const double *); int next_period(double *), look(openpi_observation *);'
    echo 'void move(openpi_engine *engine, openpi_policy *policy);'
    echo 'void move(openpi_engine *engine, openpi_policy *policy) { double now_ms; openpi_observation observation = OPENPI_OBSERVATION_INIT;'
    sed -n '/^ \*     openpi_runner_options options/,/^ \*     openpi_runner_close/s/^ \* *//p' "$root/include/openpi_runner.h"
    echo '}'
} >runner.c
grep -q openpi_runner_next runner.c || fail "openpi_runner.h holds no example"
# shellcheck disable=SC2046
$CC -std=c11 -Wall -Wextra -Werror -c runner.c -o runner.o $(pkg-config --cflags openpi) || fail "openpi_runner.h's example does not compile"

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
    echo '#include <openpi.hpp>' | $cxx -std=c++17 -Wall -Wextra -Werror -I"$root/include" -fsyntax-only -x c++ - ||
        fail "openpi.hpp does not compile where it is installed"
done
[ -n "$compiled" ] || fail "there is no C++ compiler here, neither g++ nor clang++"

# Every struct of the headers has its macro, and the macro is an initialiser in C and in C++.
structs=$(grep -ohE '^typedef struct openpi_[a-z_]+ \{' "$root"/include/openpi_{engine,policy,tools,runner}.h | cut -d' ' -f3)
[ "$(wc -w <<<"$structs")" -ge 15 ] || fail "the headers have the structs $structs, expected 15 or more"
{
    echo '#include <openpi_runner.h>'
    for struct in $structs; do
        macro=$(tr '[:lower:]' '[:upper:]' <<<"$struct")_INIT
        echo "static const $struct constant_$struct = $macro;"
        echo "int size_of_$struct(void); int size_of_$struct(void) { $struct s = $macro; return s.size == sizeof s && constant_$struct.size == sizeof s; }"
    done
} >macros.c
for compiler in "$CC -std=c11" "g++ -std=c++11 -x c++" "clang++ -std=c++20 -x c++"; do
    command -v ${compiler%% *} >/dev/null || continue
    $compiler -Wall -Wextra -Werror -pedantic -I"$root/include" -c macros.c -o macros.o || fail "$compiler: a macro of the headers is no initialiser"
done

mkdir static && cp "$libdir/libopenpi.a" static/
# shellcheck disable=SC2046
$CC -std=c11 example.c -o alone $(pkg-config --cflags openpi) static/libopenpi.a $(pkg-config --static --libs openpi | sed 's/-lopenpi//') ||
    fail "README's example does not link with libopenpi.a"
./alone >alone.txt || fail "README's example with libopenpi.a failed"
cmp shared.txt alone.txt || fail "the two libraries differ"

# find_package from a project outside: the target brings header and library. Another minor version is not taken.
mkdir project && cp example.c project/
cat >project/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.25)
project(outside C)
find_package(openpi 0.1 REQUIRED)
add_executable(outside example.c)
target_link_libraries(outside PRIVATE openpi::openpi)
find_package(openpi 0.2 QUIET CONFIG)
if(openpi_FOUND)
    message(FATAL_ERROR "openpi ${openpi_VERSION} was taken for 0.2")
endif()
END
cmake -S project -B project/build -DCMAKE_PREFIX_PATH="$root" -DCMAKE_C_COMPILER="$CC" >project/log 2>&1 &&
    cmake --build project/build >>project/log 2>&1 || fail "find_package(openpi): $(cat project/log)"
project/build/outside >outside.txt || fail "the project outside failed"
cmp shared.txt outside.txt || fail "the project outside computes something else"

# Without DESTDIR what is left to do is said, as lines to be typed; and typed they serve.
cmake --install "$BUILD" --prefix "$box/home" >home.log 2>&1 || fail "install: $(cat home.log)"
sed -n 's/^ *\(export .*\)/\1/p' home.log >home.sh
[ "$(wc -l <home.sh)" -eq 3 ] || fail "expected three lines of export: $(cat home.log)"
(
    unset LD_LIBRARY_PATH PKG_CONFIG_PATH
    # shellcheck disable=SC1091
    . ./home.sh
    [ "$(command -v openpi)" = "$box/home/bin/openpi" ] || exit 1
    # shellcheck disable=SC2046
    $CC -std=c11 example.c -o typed $(pkg-config --cflags --libs openpi) && ./typed >typed.txt && cmp shared.txt typed.txt
) || fail "the lines that install prints do not serve: $(cat home.log)"

# The program of docs/finding-a-wrong-result.md: two levels differ by rounding.
# shellcheck disable=SC2046
$CC -std=c11 -Wall -Wextra -Werror "$SOURCE/tools/observe.c" -o observe $(pkg-config --cflags --libs openpi) -lm ||
    fail "tools/observe.c does not compile"
LD_LIBRARY_PATH=$libdir ./observe >observed.txt || fail "tools/observe.c failed"
grep -q '^velocity ' observed.txt || fail "tools/observe.c printed: $(cat observed.txt)"
awk '$(NF - 2) > 1e-4 { bad = 1 } END { exit bad }' observed.txt || fail "levels differ: $(cat observed.txt)"

# A caller's own functions may be called as the library's inner ones.
echo '#include <openpi.h>' >own.c
echo 'int report(void), pool_run(void), json_read(void); int report(void) { return 0; } int pool_run(void) { return 0; } int json_read(void) { return 0; }
int main(void) { int n; return openpi_devices(0, 0, &n, 0) || n < 1 || report() || pool_run() || json_read(); }' >>own.c
# shellcheck disable=SC2046
$CC -std=c11 own.c -o own $(pkg-config --cflags openpi) static/libopenpi.a $(pkg-config --static --libs openpi | sed 's/-lopenpi//') ||
    fail "names of the library's inside collide with a caller's"
./own || fail "a caller's own names broke the library"
