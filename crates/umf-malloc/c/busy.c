/* One word per thread, found without a call of the dynamic linker: such a call may allocate. */

static __thread unsigned busy __attribute__((tls_model("initial-exec")));

unsigned *umf_proxy_busy(void) {
    return &busy;
}
