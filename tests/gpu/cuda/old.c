/* A libcuda of long ago: it has next to nothing. */
__attribute__((visibility("default"))) int cuInit(unsigned flags);

int cuInit(unsigned flags) { return (int)flags; }
