#!/bin/bash
# labels: release
# openpi.hpp: tests/cpp/arm.cpp compiles without a warning with every C++ compiler that is here, without exceptions
# and RTTI too, and does what it says; a sanitizer watches one of the programs.
set -u
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
fail() {
    echo "$*"
    exit 1
}
compiled=
for cxx in g++ clang++; do
    command -v $cxx >/dev/null || continue
    compiled=1
    warnings="-Wall -Wextra -Werror -pedantic -Wshadow -Wconversion -Wsign-conversion -Wold-style-cast -Wcast-qual -Wnon-virtual-dtor"
    [ $cxx = g++ ] || warnings="$warnings -Wcomma -Wdocumentation -Wextra-semi -Wimplicit-int-conversion"
    for flags in "-std=c++17 -fno-exceptions -fno-rtti -O1" "-std=c++20 -fsanitize=address,undefined -fno-sanitize-recover=all"; do
        # shellcheck disable=SC2086
        $cxx $flags $warnings -I"$SOURCE/include" "$SOURCE/tests/cpp/arm.cpp" -o "$box/arm" -L"$BUILD" -lopenpi -pthread ||
            fail "$cxx $flags: tests/cpp/arm.cpp does not compile"
        LD_LIBRARY_PATH=$BUILD "$box/arm" || fail "$cxx $flags: tests/cpp/arm.cpp failed"
    done
done
[ -n "$compiled" ] || { echo "there is no C++ compiler here, neither g++ nor clang++" && exit 77; }
