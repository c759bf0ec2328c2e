//! Memory of a plugin over a file, opened by other processes through the descriptor that the plugin
//! names.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use umf::plugin::FdImport;
use umf::settings::{Context, Loader};
use umf::{Handle, Pool, ProviderKind};

use crate::alone::ran_alone;
use crate::example_plugin::{folder, ran, set_mode_of};

/// The environment variable with the handle that a child process of the test opens.
const HANDLE: &str = "PLUGIN_FILES_HANDLE";
/// The environment variable with the way that it opens it.
const WAY: &str = "PLUGIN_FILES_WAY";

/// A plugin over one file, which has no IPC handles.
const C: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { FILE_SIZE = 1 << 26 };
struct allocation { char *memory; uint64_t offset; };
static struct allocation allocations[64];
static int fd = -1;
static uint64_t used;

static int initialize(const void *params, void **state) {
    (void)params;
    *state = 0;
    if (fd >= 0) return 0;
    fd = memfd_create("file", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd < 0 || ftruncate(fd, FILE_SIZE) || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);
}
static int finalize(void *s) { (void)s; return 0; }
static int alloc(void *s, size_t size, size_t align, void **p) {
    (void)s;
    if (align < 4096) align = 4096;
    size = (size + 4095) / 4096 * 4096;
    for (struct allocation *it = allocations; it < allocations + 64; it++) {
        if (it->memory || used + size > FILE_SIZE) continue;
        /* The range around the aligned one stays reserved. */
        char *range = mmap(0, size + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (range == MAP_FAILED) return 1;
        range += align - (uintptr_t)range % align;
        if (mmap(range, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)used) != range) return 1;
        it->memory = range;
        it->offset = used;
        used += size;
        *p = it->memory;
        return 0;
    }
    return 8;
}
static int release(void *s, void *p, size_t size) {
    (void)s;
    for (int at = 0; at < 64; at++) if (allocations[at].memory == p) allocations[at].memory = 0;
    return munmap(p, (size + 4095) / 4096 * 4096) ? 3 : 0;
}
static int native(void *s, const char **m, int32_t *e) { (void)s; *m = ""; *e = 0; return 0; }
static int recommended(void *s, size_t n, size_t *page) { (void)s; (void)n; *page = 4096; return 0; }
static int page_size(void *s, const void *p, size_t *page) { (void)s; (void)p; *page = 4096; return 0; }
static int name(void *s, const char **n) { (void)s; *n = "over-a-file"; return 0; }
static int ctl(void *s, int source, const char *n, void *a, size_t z, int q, void *l) {
    (void)s; (void)source; (void)l;
    struct { const char *memory; size_t size; uint64_t offset; int fd; uint32_t version; } *query = a;
    if (strcmp(n, "umf-rs.export_fd") || q != 0 || z != sizeof *query) return 9;
    query->version = 1;
    if (!query->memory) return 0;
    for (int at = 0; at < 64; at++) {
        if (allocations[at].memory == query->memory) {
            query->fd = fd;
            query->offset = allocations[at].offset;
            return 0;
        }
    }
    return 3;
}
typedef void (*any)(void);
static const struct { uint32_t version; any f[21]; } table = {0x10001, {
    (any)initialize, (any)finalize, (any)alloc, (any)release, (any)native, (any)recommended, (any)page_size,
    (any)name, 0, 0, 0, 0, 0, 0, 0, 0, 0, (any)ctl}};
const void *umfPluginProviderOps(void) { return &table; }
"#;

/// Builds the plugin. Prints a skip line and returns `None` without a C compiler.
fn plugin() -> Option<PathBuf> {
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    if !Command::new(&compiler).arg("--version").output().is_ok_and(|output| output.status.success()) {
        println!("umf-skip: plugin_files: there is no C compiler ({})", compiler.display());
        return None;
    }
    let (source, built) = (folder().join("over_a_file.c"), folder().join("libover_a_file.so"));
    std::fs::write(&source, C).unwrap();
    let mut compile = Command::new(compiler);
    compile.args(["-std=gnu11", "-Wall", "-shared", "-fPIC", "-o"]).args([&built, &source]);
    assert!(ran(&mut compile), "the C compiler");
    set_mode_of(&built, 0o755);
    Some(built)
}

/// Initialises umf with a pool `filed` over the plugin.
fn load(path: &str) -> Pool {
    let file = folder().join("filed.toml");
    let text = format!(
        "[provider.filed]\nkind = \"plugin\"\npath = \"{path}\"\n[pool.filed]\nprovider = \"filed\"\n"
    );
    std::fs::write(&file, text).unwrap();
    umf::init(Loader::with_context(Context::empty().with_variable("UMF_TOML", &file))).unwrap();
    Pool::named("filed").unwrap()
}

/// A process that opens the handle. The way is a path of the plugin, or the name of another way.
fn open(way: &str) {
    let handle: Handle = std::env::var(HANDLE).unwrap().parse().unwrap();
    let _pool = way.starts_with('/').then(|| load(way));
    if way == "without the plugin" {
        let refused = umf::open(&handle).unwrap_err().to_string();
        assert!(refused.contains("filed") && refused.contains("register_import"), "{refused}");
        let kind = ProviderKind::new("filed").unwrap();
        umf::registry::register_import(Arc::new(FdImport::trust_writers(kind)));
    }
    let read_only = umf::open_read_only(&handle).unwrap();
    let mapping = umf::open(&handle).unwrap();
    let mut text = [0; 8];
    read_only.read(8992, &mut text).unwrap();
    assert_eq!(&text, b"question");
    mapping.write(0, way.as_bytes()).unwrap();
}

#[test]
fn other_processes_open_memory_of_a_plugin_over_a_file() {
    let test = "plugin_files::other_processes_open_memory_of_a_plugin_over_a_file";
    if let Ok(way) = std::env::var(WAY) {
        open(&way);
        return;
    }
    if ran_alone(test) {
        return;
    }
    let Some(path) = plugin() else { return };
    let path = path.to_str().unwrap();
    let pool = load(path);
    assert_eq!(pool.provider().kind().as_str(), "filed");
    let other = pool.allocate(9000).unwrap();
    let block = pool.allocate(9000).unwrap();
    other.write(0, b"untouched").unwrap();
    block.write(8992, b"question").unwrap();
    let handle = block.handle().unwrap();
    for way in ["without the plugin", path] {
        let mut child = Command::new("/proc/self/exe");
        child.args(["--exact", test, "--nocapture"]).env(HANDLE, handle.to_string()).env(WAY, way);
        assert!(ran(&mut child), "{way}");
        let mut answer = vec![0; way.len()];
        block.read(0, &mut answer).unwrap();
        assert_eq!(answer, way.as_bytes());
    }
    let mut text = [0; 9];
    other.read(0, &mut text).unwrap();
    assert_eq!(&text, b"untouched");
    drop(block);
    assert!(umf::open(&handle).is_err(), "it was freed");
}
