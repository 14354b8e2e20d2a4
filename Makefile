# The commands that a person types. What is built, and how, is in CMakeLists.txt; this only calls it.
BUILD  ?= build
PREFIX ?= /usr/local
# Seconds each fuzz target runs under `make fuzz`.
FUZZ_SECONDS ?= 300

# make check-all MINUTES=60 leaves out what would last longer and finds the least.
MINUTES ?=

# More options for cmake: make CMAKE_FLAGS="-DOPENPI_CUDA=OFF -DCMAKE_C_COMPILER=clang"
CMAKE_FLAGS ?=
# Warnings are errors where the environment has CI, as .ci/run sets it; developers: make test WERROR=ON.
WERROR ?= $(if $(CI),ON,OFF)
# `make` alone needs no test library.
TESTS = OFF

CONFIGURE = cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=$(PREFIX) -DOPENPI_TESTS=$(TESTS) \
            -DOPENPI_WERROR=$(WERROR) $(CMAKE_FLAGS)

.PHONY: all deps demo test check-all fuzz bench install clean help

all:
	@missing=$$(tools/deps --list build) || { echo "missing packages:" $$missing; echo "'make deps' installs them"; exit 1; }
	@missing=$$(tools/deps --list serve) || echo "without the server, 'openpi serve', which needs" $$missing "('make deps' installs them)"
	@$(CONFIGURE) --log-level=WARNING >/dev/null
	@cmake --build $(BUILD)

deps:
	@tools/deps build serve test

demo:
	@tools/deps build serve
	@$(MAKE) --no-print-directory all
	@tools/demo $(BUILD)/openpi

test:
	@tools/deps build serve test
	@$(MAKE) --no-print-directory all TESTS=ON
	@mkdir -p $(BUILD)/results
	@ctest --test-dir $(BUILD) --output-on-failure --output-junit results/release.xml -j $$((3 * $$(nproc) / 2)) -LE '^long$$'

check-all:
	@tools/deps build serve test check
	@tools/check-all $(BUILD) $(MINUTES)

fuzz:
	@tools/deps build serve test check
	@tools/fuzz $(FUZZ_SECONDS)

bench: all
	@$(BUILD)/openpi bench --synthetic full

install: all
	@DESTDIR=$(DESTDIR) cmake --install $(BUILD) --prefix $(PREFIX)

clean:
	@rm -rf $(BUILD) $(BUILD)-asan $(BUILD)-tsan $(BUILD)-amd $(BUILD)-fuzz $(BUILD)-aarch64 $(BUILD)-sysroot

help:
	@echo "make            build $(BUILD)/openpi, libopenpi.a and libopenpi.so"
	@echo "make demo       three pictures, a robot state and an instruction to actions, on a synthetic model"
	@echo "make test       the tests of the release build, but for the long ones"
	@echo "make check-all  the long tests, sanitizers, clang, every level of instructions, fuzzing, full-size goldens"
	@echo "make fuzz       fuzzing for longer: FUZZ_SECONDS=$(FUZZ_SECONDS) a target"
	@echo "make bench      the published workload at full size"
	@echo "make install    into PREFIX=$(PREFIX), under DESTDIR"
	@echo "  CMAKE_FLAGS=...  more options for cmake, such as CMAKE_FLAGS=-DOPENPI_CUDA=OFF; WERROR=ON makes warnings errors"
	@echo "make deps       install the packages that are missing (apt)"
	@echo "make clean      remove what was built"
