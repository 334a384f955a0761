/*
 * nvrtc.c - the libnvrtc.so.13 stand-in: every program compiles to an image of one byte, which the simulated driver
 * loads without looking into it.
 */
#include "../sim.h"

#include <stdlib.h>
#include <string.h>

enum { NVRTC_SUCCESS = 0, NVRTC_OUT_OF_MEMORY = 1, NVRTC_INVALID_INPUT = 3, NVRTC_INVALID_PROGRAM = 4 };

struct name {
    struct name *next;
    char text[];
};

struct program {
    struct name *names; /* expressions; each is its own lowered name */
};

SIM_EXPORT int nvrtcVersion(int *major, int *minor) {
    if (!major || !minor) return NVRTC_INVALID_INPUT;
    *major = 13;
    *minor = 0;
    return NVRTC_SUCCESS;
}

SIM_EXPORT const char *nvrtcGetErrorString(int result) {
    return result == NVRTC_SUCCESS ? "NVRTC_SUCCESS" : "NVRTC_ERROR_INVALID_INPUT";
}

SIM_EXPORT int nvrtcCreateProgram(struct program **out, const char *source, const char *name, int header_count,
                                  const char *const *headers, const char *const *include_names) {
    (void)name, (void)header_count, (void)headers, (void)include_names;
    if (!out || !source) return NVRTC_INVALID_INPUT;
    *out = calloc(1, sizeof **out);
    return *out ? NVRTC_SUCCESS : NVRTC_OUT_OF_MEMORY;
}

SIM_EXPORT int nvrtcDestroyProgram(struct program **program) {
    if (!program || !*program) return NVRTC_INVALID_PROGRAM;
    while ((*program)->names) {
        struct name *first = (*program)->names;
        (*program)->names = first->next;
        free(first);
    }
    free(*program);
    *program = NULL;
    return NVRTC_SUCCESS;
}

SIM_EXPORT int nvrtcAddNameExpression(struct program *program, const char *expression) {
    if (!program || !expression) return NVRTC_INVALID_INPUT;
    size_t bytes = strlen(expression) + 1;
    struct name *name = malloc(sizeof *name + bytes);
    if (!name) return NVRTC_OUT_OF_MEMORY;
    memcpy(name->text, expression, bytes);
    name->next = program->names;
    program->names = name;
    return NVRTC_SUCCESS;
}

SIM_EXPORT int nvrtcGetLoweredName(struct program *program, const char *expression, const char **lowered) {
    if (!program || !expression || !lowered) return NVRTC_INVALID_INPUT;
    const struct name *name = program->names;
    while (name && strcmp(name->text, expression)) name = name->next;
    *lowered = name ? name->text : NULL;
    return name ? NVRTC_SUCCESS : NVRTC_INVALID_INPUT;
}

SIM_EXPORT int nvrtcCompileProgram(struct program *program, int option_count, const char *const *options) {
    (void)option_count, (void)options;
    return program ? NVRTC_SUCCESS : NVRTC_INVALID_PROGRAM;
}

/* Image and log are an empty string each: one byte, its end. */
#define TEXT(size_name, get_name)                                               \
    SIM_EXPORT int size_name(struct program *program, size_t *bytes) {          \
        if (!program || !bytes) return NVRTC_INVALID_INPUT;                     \
        *bytes = 1;                                                             \
        return NVRTC_SUCCESS;                                                   \
    }                                                                           \
    SIM_EXPORT int get_name(struct program *program, char *text) {              \
        if (!program || !text) return NVRTC_INVALID_INPUT;                      \
        *text = 0;                                                              \
        return NVRTC_SUCCESS;                                                   \
    }
TEXT(nvrtcGetPTXSize, nvrtcGetPTX)
TEXT(nvrtcGetCUBINSize, nvrtcGetCUBIN)
TEXT(nvrtcGetProgramLogSize, nvrtcGetProgramLog)
