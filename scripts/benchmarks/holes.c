/*
 * holes.c - preloaded when a file of many gigabytes of zeros is made: blocks of zeros become holes in the file.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static int all_zero(const char *bytes, size_t count) {
    return count >= 4096 && bytes[0] == 0 && memcmp(bytes, bytes + 1, count - 1) == 0;
}

ssize_t write(int file, const void *bytes, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (file > 2 && all_zero(bytes, count) && lseek(file, (off_t)count, SEEK_CUR) >= 0) return (ssize_t)count;
    return real(file, bytes, count);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    ssize_t total = 0;
    for (int i = 0; i < count; i++) {
        ssize_t written = write(file, parts[i].iov_base, parts[i].iov_len);
        if (written < 0) return total ? total : written;
        total += written;
        if ((size_t)written < parts[i].iov_len) break;
    }
    return total;
}
