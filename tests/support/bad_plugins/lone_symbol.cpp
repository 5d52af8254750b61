// A CPU pack whose kernel has no digest beside it.
extern "C" __attribute__((visibility("default"))) void atlas_kernel_lone(const void*, unsigned,
                                                                         unsigned, void*) {}
