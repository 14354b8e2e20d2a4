/* A libamdhip64 of long ago: it has next to nothing. */
__attribute__((visibility("default"))) int hipInit(unsigned flags);

int hipInit(unsigned flags) { return (int)flags; }
