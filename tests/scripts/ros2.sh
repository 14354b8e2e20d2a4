#!/bin/bash
# labels: release
# The ROS 2 node of ros2/ against stubs of the names that it uses (tests/ros2/stubs): every C++ compiler that is here takes it
# without a warning, and with a tiny model it moves a robot, under a sanitizer. ROS 2 itself is not needed and not used.
set -u
box=$(mktemp -d) || exit 1
trap 'rm -rf "$box"' EXIT
fail() {
    echo "$*"
    exit 1
}
paths=(-std=c++17 -I"$SOURCE/ros2/src" -I"$SOURCE/include" -isystem "$SOURCE/tests/ros2/stubs")
warnings=(-Wall -Wextra -Werror -Wshadow -Wconversion -Wold-style-cast -Wcast-qual)
compiler=
for cxx in g++ clang++; do
    command -v $cxx >/dev/null || continue
    compiler=$cxx
    for program in tests/ros2/node.cpp ros2/src/main.cpp; do
        $cxx -fsyntax-only "${paths[@]}" "${warnings[@]}" "$SOURCE/$program" || fail "$cxx: $program does not compile"
    done
done
[ -n "$compiler" ] || { echo "there is no C++ compiler here, neither g++ nor clang++" && exit 77; }
$compiler -fsanitize=address,undefined -fno-sanitize-recover=all "${paths[@]}" "$SOURCE/tests/ros2/node.cpp" -o "$box/node" -L"$BUILD" \
    -lopenpi -pthread || fail "$compiler: tests/ros2/node.cpp does not compile"
LD_LIBRARY_PATH=$BUILD "$box/node" || fail "the node does not do what it says"
for package in $(sed -n 's|.*<depend>\(.*\)</depend>.*|\1|p' "$SOURCE/ros2/package.xml"); do
    grep -q "set(MESSAGES.*\b$package\b" "$SOURCE/ros2/CMakeLists.txt" || fail "ros2/CMakeLists.txt lacks $package"
done
