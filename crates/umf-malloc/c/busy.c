/* A word of each thread that is found without a call of the dynamic linker, which may allocate for others. */

static __thread unsigned busy __attribute__((tls_model("initial-exec")));

unsigned *umf_proxy_busy(void) {
    return &busy;
}
