/* A libcuda.so.1 that can do no more than begin: what a program finds where the driver is too old, or a placeholder. */
int cuInit(unsigned flags);
int cuInit(unsigned flags) { return (int)flags; }
