/* Preloaded into every process of a run: one sync in eight takes up to 50 ms longer, as on a disk that others use. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <time.h>

static void wait_a_while(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t draw = (uint64_t)now.tv_nsec * 0x9E3779B97F4A7C15ull >> 32;
    if (draw % 8 == 0) {
        struct timespec pause = {0, (long)(draw / 8 % 50000000)};
        nanosleep(&pause, 0);
    }
}

int fdatasync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_a_while();
    return next(fd);
}

int fsync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_a_while();
    return next(fd);
}
