/* Runs a program and writes to the file named first: wall time in ns, CPU time in ns, peak RSS in KiB of the largest
 * process among it and its children, exit status. A program of its own, because a process inherits the peak of the one
 * that starts it: this one is far smaller than Python. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static long long nanoseconds(struct timespec time) { return time.tv_sec * 1000000000LL + time.tv_nsec; }
static long long microseconds(struct timeval time) { return time.tv_sec * 1000000LL + time.tv_usec; }

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[2], argv + 2);
        _exit(127);
    }
    int status;
    struct rusage usage;
    if (child < 0 || wait4(child, &status, 0, &usage) != child) return 2;
    clock_gettime(CLOCK_MONOTONIC, &end);
    FILE *out = fopen(argv[1], "w");
    if (!out) return 2;
    fprintf(out, "%lld %lld %ld %d\n", nanoseconds(end) - nanoseconds(start),
            (microseconds(usage.ru_utime) + microseconds(usage.ru_stime)) * 1000, usage.ru_maxrss,
            WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    return fclose(out) == 0 ? 0 : 2;
}
