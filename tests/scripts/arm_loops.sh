#!/bin/bash
# What gcc made of the products of 64-bit ARM, whose speed nobody could measure: arm_loops.py counts the
# instructions of their inner loops. Skipped where the build is for another processor or not by gcc.
folder=$BUILD/CMakeFiles/openpi_objects.dir/src/backend/cpu/arm
[ -e "$folder/kernels_neon.c.o" ] || { echo "SKIPPED: not a build for 64-bit ARM"; exit 77; }
"$CC" --version | grep -q 'Free Software Foundation' || { echo "SKIPPED: not by gcc"; exit 77; }
objdump=${CC%gcc}objdump
command -v "$objdump" >/dev/null || { echo "SKIPPED: there is no $objdump here"; exit 77; }
python3 "$SOURCE/tests/scripts/arm_loops.py" "$objdump" "$folder"/{kernels_neon,kernels_neonbf16,int8_neon,int8_neondot,int8_neonbf16}.c.o
