/* cufile.c - the libcufile.so.0 stand-in: there is no storage that reads into a simulated device, and it says so. */
#include "../sim.h"

#include <sys/types.h>

#define DRIVER_NOT_INITIALIZED 5001

struct file_error {
    int file, driver;
};

SIM_EXPORT struct file_error cuFileHandleRegister(void **handle, void *description) {
    (void)description;
    if (handle) *handle = NULL;
    return (struct file_error){DRIVER_NOT_INITIALIZED, 0};
}

SIM_EXPORT struct file_error cuFileBufRegister(const void *buffer, size_t bytes, int flags) {
    (void)buffer, (void)bytes, (void)flags;
    return (struct file_error){DRIVER_NOT_INITIALIZED, 0};
}

SIM_EXPORT ssize_t cuFileRead(void *handle, void *buffer, size_t bytes, off_t file_offset, off_t buffer_offset) {
    (void)handle, (void)buffer, (void)bytes, (void)file_offset, (void)buffer_offset;
    return -DRIVER_NOT_INITIALIZED;
}

SIM_EXPORT ssize_t cuFileWrite(void *handle, const void *buffer, size_t bytes, off_t file_offset, off_t buffer_offset) {
    (void)handle, (void)buffer, (void)bytes, (void)file_offset, (void)buffer_offset;
    return -DRIVER_NOT_INITIALIZED;
}
