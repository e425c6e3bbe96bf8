/* A libcuda.so.1 that can do no more than begin: what a program finds where the driver is a placeholder, or, with a
 * VERSION, too old. */
int cuInit(unsigned flags);
int cuInit(unsigned flags) { return (int)flags; }
#ifdef VERSION
int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
#endif
