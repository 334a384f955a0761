/* The floor under a reader: opens a file, reads the byte ranges OFFSET:LENGTH and does nothing with them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    int file = open(argv[1], O_RDONLY);
    if (file < 0) return 1;
    for (int i = 2; i < argc; i++) {
        long long offset, length;
        if (sscanf(argv[i], "%lld:%lld", &offset, &length) != 2) return 2;
        char *buffer = malloc(length);
        if (!buffer || pread(file, buffer, length, offset) != length) return 1;
        free(buffer);
    }
    return 0;
}
