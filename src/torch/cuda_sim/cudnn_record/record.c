/*
 * record.c - which convolutions cuDNN runs, and the workspace that each takes.
 *
 * No stand-in: this library is preloaded beside the real cuDNN, whose graph API libtorch then calls through it. Every
 * call is handed on unchanged; beside each of cuDNN's descriptors one of ours is kept with the same attributes
 * (../cudnn/descriptor.h), so that a plan that runs can be told by its convolution, as the stand-in tells them apart.
 * It has no symbol versions, so it answers for whatever version libtorch asks for.
 */
#include "../cudnn/descriptor.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* cudnnStatus_t: success, and what is answered where cuDNN is not there to be asked. */
enum { SUCCESS = 0, NOT_INITIALIZED = 1001 };

/* --- the real library --- */

struct cudnn {
    int (*create)(int, void **);
    int (*destroy)(void *);
    int (*set)(void *, int, int, int64_t, const void *);
    int (*get)(void *, int, int, int64_t, int64_t *, void *);
    int (*execute)(void *, void *, void *);
};
static struct cudnn cudnn;
static pthread_once_t found = PTHREAD_ONCE_INIT;

static void find_cudnn(void) {
    /* libtorch has loaded it: this library's own symbols are not looked at. */
    void *library = dlopen("libcudnn.so.9", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return;
    struct cudnn all = {
        (int (*)(int, void **))dlsym(library, "cudnnBackendCreateDescriptor"),
        (int (*)(void *))dlsym(library, "cudnnBackendDestroyDescriptor"),
        (int (*)(void *, int, int, int64_t, const void *))dlsym(library, "cudnnBackendSetAttribute"),
        (int (*)(void *, int, int, int64_t, int64_t *, void *))dlsym(library, "cudnnBackendGetAttribute"),
        (int (*)(void *, void *, void *))dlsym(library, "cudnnBackendExecute"),
    };
    if (all.create && all.destroy && all.set && all.get && all.execute) cudnn = all;
}

/* NULL where it is not there. */
static const struct cudnn *real(void) {
    pthread_once(&found, find_cudnn);
    return cudnn.create ? &cudnn : NULL;
}

/* --- ours beside theirs, by address --- */

struct pair {
    void *theirs;
    struct descriptor *ours;
    struct pair *next;
};
enum { BUCKETS = 4096 };
static struct pair *pairs[BUCKETS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct pair **bucket(const void *theirs) { return &pairs[((uintptr_t)theirs >> 4) % BUCKETS]; }

static struct pair **place(const void *theirs) {
    struct pair **at = bucket(theirs);
    while (*at && (*at)->theirs != theirs) at = &(*at)->next;
    return at;
}

static struct descriptor *ours(const void *theirs) {
    struct pair *pair = theirs ? *place(theirs) : NULL;
    return pair ? pair->ours : NULL;
}

static void forget(const void *theirs) {
    struct pair **at = place(theirs), *pair = *at;
    if (!pair) return;
    *at = pair->next;
    descriptor_release(pair->ours);
    free(pair);
}

static void keep(void *theirs, int type) {
    forget(theirs);
    struct pair *pair = calloc(1, sizeof *pair), **first = bucket(theirs);
    if (!pair) return;
    *pair = (struct pair){theirs, descriptor_new(type), *first};
    *first = pair;
}

/* Sets an attribute of ours; descriptors among the elements are replaced by ours. */
static void remember(const void *theirs, int name, int type, size_t count, const void *elements) {
    struct descriptor *descriptor = ours(theirs);
    if (!descriptor) return;
    if (type != ELEMENT_DESCRIPTOR) {
        descriptor_set(descriptor, name, type, count, elements);
        return;
    }
    struct descriptor **shared = calloc(count ? count : 1, sizeof *shared);
    if (!shared) return;
    for (size_t i = 0; i < count; i++) shared[i] = ours(((void *const *)elements)[i]);
    descriptor_set(descriptor, name, type, count, shared);
    free(shared);
}

/* --- what was run --- */

struct run {
    struct sim_convolution convolution;
    uint64_t workspace_bytes, calls;
};
static struct run *runs;
static size_t run_count, run_capacity;

/* A convolution that is run with several plans, as benchmarking does, counts with the largest workspace. */
static void note(const struct sim_convolution *convolution, uint64_t workspace_bytes) {
    struct run *run = runs;
    while (run < runs + run_count && memcmp(&run->convolution, convolution, sizeof *convolution)) run++;
    if (run == runs + run_count) {
        if (run_count == run_capacity) {
            size_t capacity = run_capacity ? 2 * run_capacity : 64;
            struct run *more = realloc(runs, capacity * sizeof *more);
            if (!more) return;
            runs = more;
            run_capacity = capacity;
        }
        run = &runs[run_count++];
        *run = (struct run){.convolution = *convolution};
    }
    run->calls++;
    if (workspace_bytes > run->workspace_bytes) run->workspace_bytes = workspace_bytes;
}

SIM_EXPORT int inspect_cudnn_record(size_t index, struct sim_convolution *convolution, uint64_t *workspace_bytes,
                                    uint64_t *calls) {
    pthread_mutex_lock(&lock);
    int known = index < run_count;
    if (known) {
        *convolution = runs[index].convolution;
        *workspace_bytes = runs[index].workspace_bytes;
        *calls = runs[index].calls;
    }
    pthread_mutex_unlock(&lock);
    return known;
}

/* --- cuDNN's functions --- */

SIM_EXPORT int cudnnBackendCreateDescriptor(int type, void **out) {
    const struct cudnn *cudnn = real();
    if (!cudnn) return NOT_INITIALIZED;
    int status = cudnn->create(type, out);
    if (status == SUCCESS && out && *out) {
        pthread_mutex_lock(&lock);
        keep(*out, type);
        pthread_mutex_unlock(&lock);
    }
    return status;
}

SIM_EXPORT int cudnnBackendDestroyDescriptor(void *descriptor) {
    const struct cudnn *cudnn = real();
    if (!cudnn) return NOT_INITIALIZED;
    pthread_mutex_lock(&lock);
    forget(descriptor); /* first: the address may be another's at once */
    pthread_mutex_unlock(&lock);
    return cudnn->destroy(descriptor);
}

SIM_EXPORT int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count, const void *elements) {
    const struct cudnn *cudnn = real();
    if (!cudnn) return NOT_INITIALIZED;
    int status = cudnn->set(descriptor, name, type, count, elements);
    if (status == SUCCESS && count >= 0 && (elements || !count)) {
        pthread_mutex_lock(&lock);
        remember(descriptor, name, type, (size_t)count, elements);
        pthread_mutex_unlock(&lock);
    }
    return status;
}

SIM_EXPORT int cudnnBackendGetAttribute(void *descriptor, int name, int type, int64_t wanted, int64_t *count,
                                        void *elements) {
    const struct cudnn *cudnn = real();
    if (!cudnn) return NOT_INITIALIZED;
    int64_t given = 0;
    int status = cudnn->get(descriptor, name, type, wanted, &given, elements);
    if (count) *count = given;
    /* A heuristic fills configurations that its caller has created: their graph is the heuristic's. */
    if (status == SUCCESS && name == HEURISTIC_RESULTS && type == ELEMENT_DESCRIPTOR && elements) {
        pthread_mutex_lock(&lock);
        struct descriptor *heuristic = ours(descriptor);
        for (int64_t i = 0; heuristic && i < given && i < wanted; i++) {
            struct descriptor *config = ours(((void **)elements)[i]);
            if (config) descriptor_set_result(heuristic, config);
        }
        pthread_mutex_unlock(&lock);
    }
    return status;
}

SIM_EXPORT int cudnnBackendExecute(void *handle, void *plan, void *pack) {
    const struct cudnn *cudnn = real();
    if (!cudnn) return NOT_INITIALIZED;
    int status = cudnn->execute(handle, plan, pack);
    if (status != SUCCESS) return status;
    struct sim_convolution convolution;
    pthread_mutex_lock(&lock);
    int known = descriptor_convolution(descriptor_linked(ours(plan), PLAN_CONFIG), &convolution);
    pthread_mutex_unlock(&lock);
    int64_t bytes = 0, count = 0;
    if (known && cudnn->get(plan, PLAN_WORKSPACE, ELEMENT_INT64, 1, &count, &bytes) == SUCCESS && bytes >= 0) {
        pthread_mutex_lock(&lock);
        note(&convolution, (uint64_t)bytes);
        pthread_mutex_unlock(&lock);
    }
    return status;
}
