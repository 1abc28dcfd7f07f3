/* Adds the seconds in the file CLOCK_STEP to the wall clock of a process. The clock of the host is not changed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time)
{
    int (*next)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, time);
    FILE *file = clock == CLOCK_REALTIME && result == 0 ? fopen(getenv("CLOCK_STEP"), "r") : NULL;
    if (file) {
        long seconds = 0;
        if (fscanf(file, "%ld", &seconds) == 1)
            time->tv_sec += seconds;
        fclose(file);
    }
    return result;
}
