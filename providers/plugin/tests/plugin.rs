//! Loading of plugins, the conformance suite over one, and errors for invalid ones.

#![allow(clippy::unwrap_used, reason = "a test that fails says where")]
#![allow(clippy::disallowed_methods, reason = "a test reads the environment as it is")]

#[path = "../../../crates/umf/tests/api/example_plugin.rs"]
mod example_plugin;

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use example_plugin::{example, folder, ran, set_mode_of};
use serde_json::json;
use umf_core::{
    Access, Error, Import, ImportRequest, Layout, MemoryKind, Property, PropertyValue, Provider,
    ProviderKind, Region, Visibility,
};
use umf_provider_plugin::{FdImport, PluginError, PluginLoader, PluginProvider, TableError, load};

fn kind() -> ProviderKind {
    ProviderKind::new("example").unwrap()
}

fn load_example() -> Arc<PluginProvider> {
    load(&example(), None, None, kind()).unwrap()
}

umf_testkit::provider_conformance!(rust_plugin, load_example);

#[test]
fn params_reach_the_plugin() {
    let params = json!({ "name": "mine", "limit": 3 * 4096 });
    let provider = load(&example(), None, Some(&params), kind()).unwrap();
    assert_eq!((provider.name(), provider.kind()), ("mine", kind()));
    assert_eq!((provider.memory_kind(), provider.visibility()), (MemoryKind::Host, Visibility::Private));
    let two_pages = Layout::new(2 * 4096, 1).unwrap();
    let region = provider.allocate(two_pages).unwrap();
    let error = provider.allocate(two_pages).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { size: 8192, owner: "plugin mine", .. }), "{error}");
    // SAFETY: allocated above and not used.
    unsafe { provider.free(region) }.unwrap();
    let region = provider.allocate(Layout::new(3 * 4096, 1).unwrap()).unwrap();
    // SAFETY: allocated above and not used.
    unsafe { provider.free(region) }.unwrap();

    let wrong = load(&example(), None, Some(&json!({ "nmae": 1 })), kind()).unwrap_err();
    assert!(matches!(wrong, PluginError::Start { source: Error::InvalidArgument { .. }, .. }), "{wrong}");
}

#[test]
fn provider_supports_the_operations_of_the_table() {
    let provider = load_example();
    assert!(provider.export().is_none() && provider.import().is_none() && provider.importer().is_none());
    assert!(provider.purge().is_some());
    let region = page(&provider);
    let properties = provider.properties().unwrap();
    assert_eq!(properties.property(&region, Property::CacheLine), Ok(PropertyValue::Number(64)));
    assert!(matches!(properties.property(&region, Property::Device), Err(Error::NotSupported { .. })));
    // SAFETY: allocated above and not used.
    unsafe { provider.free(region) }.unwrap();
}

#[test]
fn live_regions_outlive_the_provider() {
    let provider = load_example();
    let memory = page(&provider).base().as_ptr().unwrap();
    drop(provider);
    // SAFETY: a region is valid until it is freed.
    unsafe { memory.write_volatile(1) };
}

fn load_error(path: impl AsRef<Path>) -> PluginError {
    load(path.as_ref(), None, None, kind()).unwrap_err()
}

#[test]
fn load_rejects_files_that_are_not_plugins() {
    let error = load_error("libmine.so");
    assert!(matches!(error, PluginError::RelativePath { .. }), "{error}");
    let error = load_error(folder().join("nothing.so"));
    assert!(matches!(error, PluginError::File { .. }) && error.to_string().contains("nothing.so"), "{error}");
    let error = load_error(folder());
    assert!(matches!(error, PluginError::NotAFile { .. }), "{error}");

    let text = folder().join("text.so");
    fs::write(&text, "not a shared object").unwrap();
    set_mode_of(&text, 0o644);
    let error = load_error(&text);
    assert!(matches!(error, PluginError::NotASharedObject { .. }), "{error}");
    let has_dlerror =
        ["file too short", "invalid ELF header"].iter().any(|text| error.to_string().contains(text));
    assert!(has_dlerror, "the text of dlerror is missing: {error}");

    let error = load(&example(), Some("noSuchFunction"), None, kind()).unwrap_err();
    assert!(matches!(error, PluginError::NoSymbol { .. }), "{error}");
    assert!(error.to_string().contains("undefined symbol: noSuchFunction"), "{error}");
}

#[test]
fn load_rejects_world_writable_files_and_folders() {
    let open = folder().join("open.so");
    fs::copy(example(), &open).unwrap();
    set_mode_of(&open, 0o757);
    let error = load_error(&open);
    assert!(matches!(error, PluginError::WritableByAll { mode: 0o757, .. }), "{error}");

    // The target of a link is checked.
    let link = folder().join("link.so");
    symlink(&open, &link).unwrap();
    assert!(matches!(load_error(&link), PluginError::WritableByAll { .. }));

    let yard = folder().join("yard");
    fs::create_dir(&yard).unwrap();
    let inside = yard.join("inside.so");
    fs::copy(example(), &inside).unwrap();
    set_mode_of(&inside, 0o755);
    set_mode_of(&yard, 0o777);
    let error = load_error(&inside);
    assert!(matches!(&error, PluginError::WritableByAll { path, .. } if path.ends_with("yard")), "{error}");
    set_mode_of(&yard, 0o1777);
    assert!(load(&inside, None, None, kind()).is_ok(), "sticky, as /tmp is");
}

#[test]
fn load_rejects_files_of_other_users() {
    let foreign = folder().join("foreign.so");
    fs::copy(example(), &foreign).unwrap();
    set_mode_of(&foreign, 0o755);
    if let Err(error) = std::os::unix::fs::chown(&foreign, Some(12345), None) {
        println!("umf-skip: plugin: only root can give files away ({error})");
        return;
    }
    let error = load_error(&foreign);
    assert!(matches!(error, PluginError::ForeignOwner { owner: 12345, .. }), "{error}");
}

#[test]
fn load_rejects_tables_of_unknown_versions() {
    let source = folder().join("version.rs");
    let text = "static TABLE: [u64; 22] = [0x2_0000; 22];\n\
                #[unsafe(no_mangle)] pub extern \"C\" fn umfPluginProviderOps() -> *const u64 { TABLE.as_ptr() }\n\
                #[unsafe(no_mangle)] pub extern \"C\" fn nothing() -> *const u64 { std::ptr::null() }\n";
    fs::write(&source, text).unwrap();
    let built = folder().join("libversion.so");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition=2024", "--crate-type=cdylib", "-o"]).args([&built, &source]);
    assert!(ran(&mut rustc), "rustc");
    set_mode_of(&built, 0o755);
    let error = load_error(&built);
    let version = TableError::Version { major: 2, minor: 0 };
    assert!(matches!(&error, PluginError::Table { fault, .. } if *fault == version), "{error}");
    assert!(error.to_string().contains("2.0") && error.to_string().contains("1.2"), "{error}");
    let error = load(&built, Some("nothing"), None, kind()).unwrap_err();
    assert!(matches!(error, PluginError::Table { fault: TableError::Null, .. }), "{error}");
}

/// A plugin in C with several tables. It counts calls, and violates the contract in some modes.
const C: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef int result;
static int counts[7]; /* initialize, finalize, get, put, open, close, post_initialize */
static int mode; /* 1: NULL, 2: misaligned, 3: the same again, 4: own error */
static void *last;
static int fd = -1;
static size_t used;

int count(int what) { return counts[what]; }
void set_mode(int m) { mode = m; }

static result initialize(const void *params, void **state) {
    (void)params;
    counts[0]++;
    *state = 0;
    if (fd < 0 && ((fd = memfd_create("plugin", MFD_CLOEXEC | MFD_ALLOW_SEALING)) < 0 || ftruncate(fd, 1 << 28)
            || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK))) return 1;
    return 0;
}
static result finalize(void *s) { (void)s; counts[1]++; return 0; }
static result alloc(void *s, size_t size, size_t align, void **p) {
    (void)s;
    if (mode == 1) { *p = 0; return 0; }
    if (mode == 3) { *p = last; return 0; }
    if (mode == 4) return 2;
    if (align > 4096) return 4;
    size_t at = __atomic_fetch_add(&used, size, __ATOMIC_RELAXED);
    if (at + size > 1 << 28) return 8;
    void *m = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)at);
    if (m == MAP_FAILED) return 1;
    *(uint64_t *)m = at; /* read by get; tests do not overwrite it */
    last = m;
    *p = mode == 2 ? (char *)m + 8 : m;
    return 0;
}
static result release(void *s, void *p, size_t size) {
    (void)s;
    return munmap((void *)((uintptr_t)p & ~(uintptr_t)4095), size) ? 3 : 0;
}
static result native(void *s, const char **m, int32_t *e) { (void)s; *m = "the flux is out"; *e = 77; return 0; }
static result recommended(void *s, size_t n, size_t *page) { (void)s; (void)n; *page = 3; return 0; }
static result page_size(void *s, const void *p, size_t *page) { (void)s; (void)p; *page = 4096; return 0; }
static result name(void *s, const char **n) { (void)s; *n = "in-c"; return 0; }
static result handle_size(void *s, size_t *n) { (void)s; *n = 16; return 0; }
static result huge_handle(void *s, size_t *n) { (void)s; *n = 65; return 0; }
static result no_handle(void *s, size_t *n) { (void)s; (void)n; return 5; }
static result private_handle(void *s, size_t *n) { (void)s; (void)n; return 3; }
static result get(void *s, const void *p, size_t size, void *h) {
    (void)s;
    counts[2]++;
    uint64_t words[2] = {*(const uint64_t *)p, size};
    memcpy(h, words, 16);
    return 0;
}
static result put(void *s, void *h) { (void)s; (void)h; counts[3]++; return 0; }
static result open_(void *s, void *h, void **p) {
    (void)s;
    uint64_t words[2];
    memcpy(words, h, 16);
    counts[4]++;
    *p = mmap(0, words[1], PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)words[0]);
    return *p == MAP_FAILED ? 3 : 0;
}
static result close_(void *s, void *p, size_t size) { (void)s; counts[5]++; return munmap(p, size) ? 3 : 0; }
static result ctl(void *s, int source, const char *n, void *a, size_t z, int q, void *l) {
    (void)s; (void)source; (void)a; (void)z; (void)q; (void)l;
    if (strcmp(n, "post_initialize")) return 9;
    counts[6]++;
    return 0;
}
static int named; /* the descriptor that the plugin names; -1 after a close */
void set_named(int n) { named = n; }
static result file_ctl(void *s, int source, const char *n, void *a, size_t z, int q, void *l) {
    (void)s; (void)source; (void)l;
    struct { const void *memory; size_t size; uint64_t offset; int fd; uint32_t version; } *query = a;
    if (strcmp(n, "umf-rs.export_fd") || q != 0 || z != sizeof *query) return 9;
    query->version = 1;
    if (!query->memory) return 0;
    query->fd = named ? named : fd;
    query->offset = *(const uint64_t *)query->memory;
    return 0;
}
static result property(void *s, const void *p, int id, void *v) {
    (void)s; (void)p;
    int type = 2;
    uint64_t device = 0x1234;
    if (id == 20) { memcpy(v, &type, 4); return 0; }
    if (id == 22) { memcpy(v, &device, 8); return 0; }
    return 5;
}
static result property_size(void *s, int id, size_t *n) { (void)s; *n = id == 20 ? 4 : 8; return 0; }
static result line(void *s, size_t *n) { (void)s; *n = 128; return 0; }

typedef void (*any)(void);
struct table { uint32_t version; any f[21]; };
#define HEAD (any)initialize, (any)finalize, (any)alloc, (any)release, (any)native, (any)recommended, (any)page_size, (any)name
#define IPC(size) (any)size, (any)get, (any)put, (any)open_, (any)close_
static const struct table v10 = {0x10000, {HEAD, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (any)property}};
static const struct table v11 = {0x10001, {HEAD, 0, 0, 0, 0, IPC(handle_size), (any)ctl}};
static const struct table v12 = {0x10002, {HEAD, 0, 0, 0, 0, 0, 0, 0, 0, 0, (any)ctl, (any)property, (any)property_size, (any)line}};
static const struct table large = {0x10001, {HEAD, 0, 0, 0, 0, IPC(huge_handle)}};
static const struct table off = {0x10001, {HEAD, 0, 0, 0, 0, IPC(no_handle)}};
static const struct table private = {0x10001, {HEAD, 0, 0, 0, 0, IPC(private_handle)}};
static const struct table file = {0x10001, {HEAD, 0, 0, 0, 0, 0, 0, 0, 0, 0, (any)file_ctl}};
static const struct table half = {0x10001, {HEAD, 0, 0, 0, 0, (any)handle_size}};
static const struct table newer = {0x10003, {HEAD}};
const void *umfPluginProviderOps(void) { return &v11; }
const void *ops10(void) { return &v10; }
const void *ops12(void) { return &v12; }
const void *opsLarge(void) { return &large; }
const void *opsOff(void) { return &off; }
const void *opsPrivate(void) { return &private; }
const void *opsFile(void) { return &file; }
const void *opsHalf(void) { return &half; }
const void *opsNewer(void) { return &newer; }
"#;

/// Builds the plugin in C. Returns `None`, and prints a note, without a C compiler.
fn c_plugin() -> Option<PathBuf> {
    static BUILT: LazyLock<Option<PathBuf>> = LazyLock::new(|| {
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        if !Command::new(&compiler).arg("--version").output().is_ok_and(|output| output.status.success()) {
            println!("umf-skip: plugin: there is no C compiler ({})", compiler.display());
            return None;
        }
        let (source, built) = (folder().join("plugin.c"), folder().join("libinc.so"));
        fs::write(&source, C).unwrap();
        let mut cc = Command::new(compiler);
        cc.args(["-std=gnu11", "-Wall", "-shared", "-fPIC", "-o"].map(OsStr::new)).args([&built, &source]);
        assert!(ran(&mut cc), "the C compiler");
        set_mode_of(&built, 0o755);
        Some(built)
    });
    BUILT.clone()
}

/// Serialises the tests that count calls of the plugin in C or set its mode.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Direct access to the counters and the mode of the plugin in C.
struct Probe(libloading::Library);

impl Probe {
    fn new(path: &Path) -> Self {
        // SAFETY: the library has no initialisers.
        Self(unsafe { libloading::Library::new(path) }.unwrap())
    }

    fn count(&self, what: i32) -> i32 {
        // SAFETY: `int count(int)` in the source above.
        unsafe { self.0.get::<unsafe extern "C" fn(i32) -> i32>(b"count").unwrap()(what) }
    }

    fn set_mode(&self, mode: i32) {
        // SAFETY: `void set_mode(int)` in the source above.
        unsafe { self.0.get::<unsafe extern "C" fn(i32)>(b"set_mode").unwrap()(mode) }
    }
}

const INITIALIZED: i32 = 0;
const FINALIZED: i32 = 1;
const GETS: i32 = 2;
const PUTS: i32 = 3;
const OPENS: i32 = 4;
const CLOSES: i32 = 5;
const POST: i32 = 6;

fn request(native: &[u8], size: usize, access: Access) -> ImportRequest {
    let mut request = ImportRequest::new(None, 0, size, access);
    request.native[..native.len()].copy_from_slice(native);
    request.native_len = native.len();
    request
}

fn page(provider: &PluginProvider) -> Region {
    provider.allocate(Layout::new(4096, 1).unwrap()).unwrap()
}

#[test]
fn each_handle_is_put_once_and_finalize_is_called_last() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = c_plugin() else { return };
    let probe = Probe::new(&path);
    let before: Vec<_> = (0..7).map(|what| probe.count(what)).collect();
    let since = |what: i32| probe.count(what) - before[usize::try_from(what).unwrap()];

    let provider = PluginLoader::new(&path).kind(kind()).load().unwrap();
    assert_eq!((since(INITIALIZED), since(POST)), (1, 1));
    assert_eq!(provider.visibility(), Visibility::Shared);
    assert_eq!(provider.recommended_page_size(1 << 20), 4096, "3 is no page size");
    let region = page(&provider);
    let exports = provider.export().unwrap();
    let first = exports.export(&region).unwrap();
    assert_eq!((since(GETS), first.native.as_slice().len()), (1, 16));

    let imports = provider.importer().unwrap();
    let imported = imports.import(request(first.native.as_slice(), 4096, Access::ReadWrite)).unwrap();
    let (here, there) = (imported.base.as_ptr().unwrap(), region.base().as_ptr().unwrap());
    assert_ne!(here, there);
    // SAFETY: both pages are mapped, and only this test uses them.
    unsafe {
        there.add(100).write_volatile(42);
        assert_eq!(here.add(100).read_volatile(), 42);
    }
    for bytes in [&first.native.as_slice()[..15], &[0; 17], &[]] {
        let error = imports.import(request(bytes, 4096, Access::ReadWrite)).unwrap_err();
        assert!(matches!(error, Error::Untrusted { .. }), "{error}");
    }
    assert_eq!(since(OPENS), 1, "invalid handles are not passed to the plugin");
    let read_only = imports.import(request(first.native.as_slice(), 4096, Access::ReadOnly)).unwrap();
    assert!(read_only.read_only && !imported.read_only);
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let line = maps.lines().find(|line| line.starts_with(&format!("{:x}-", read_only.base.value()))).unwrap();
    assert!(line.contains(" r--s "), "{line}");
    // SAFETY: not used, and released once.
    unsafe { imports.release(read_only) }.unwrap();

    assert_eq!(since(PUTS), 0);
    exports.unexport(&region, first).unwrap();
    assert_eq!(since(PUTS), 1);
    // SAFETY: not used any more.
    unsafe { provider.free(region) }.unwrap();
    drop(provider);
    assert_eq!(since(FINALIZED), 0, "the importer keeps the plugin loaded");
    // SAFETY: not used any more, and released once.
    unsafe { imports.release(imported) }.unwrap();
    drop(imports);
    assert_eq!((since(INITIALIZED), since(CLOSES), since(FINALIZED), since(PUTS)), (1, 2, 1, 1));
}

#[test]
fn plugin_over_a_file_exports_by_descriptor() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = c_plugin() else { return };
    let provider = PluginLoader::new(&path).symbol("opsFile").kind(kind()).load().unwrap();
    assert_eq!(provider.visibility(), Visibility::Shared);
    let (first, region) = (page(&provider), page(&provider));
    let exports = provider.export().unwrap();
    let export = exports.export(&region).unwrap();
    assert!(export.native.as_slice().is_empty() && export.offset > 0 && exports.uses_fd_per_export());
    let fd = || Some(export.fd.as_ref().unwrap().try_clone().unwrap());
    let request = |size, access| ImportRequest::new(fd(), export.offset, size, access);
    // Another process needs the plugin, or this importer.
    let without_plugin = FdImport::trust_writers(kind());
    let there = region.base().as_ptr().unwrap();
    for import in [provider.import().unwrap(), &without_plugin as &dyn Import] {
        let imported = import.import(request(4096, Access::ReadWrite)).unwrap();
        let here = imported.base.as_ptr().unwrap();
        // SAFETY: both pages are mapped, and only this test uses them.
        unsafe {
            there.add(100).write_volatile(42);
            assert_eq!(here.add(100).read_volatile(), 42);
            import.release(imported).unwrap();
        }
        let too_large = import.import(request(1 << 30, Access::ReadWrite));
        assert!(matches!(too_large, Err(Error::Untrusted { .. })), "{too_large:?}");
        let without_fd = import.import(ImportRequest::new(None, 0, 4096, Access::ReadWrite));
        assert!(matches!(without_fd, Err(Error::Untrusted { .. })), "{without_fd:?}");
    }
    // SAFETY: `void set_named(int)` in the source above.
    let set_named = |fd: i32| unsafe {
        let library = libloading::Library::new(&path).unwrap();
        library.get::<unsafe extern "C" fn(i32)>(b"set_named").unwrap()(fd);
    };
    let empty = fs::File::open("/dev/null").unwrap();
    let (folder, (reader, _writer)) = (fs::File::open("/").unwrap(), std::io::pipe().unwrap());
    // SAFETY: the name is a C string.
    let unsealed =
        unsafe { libc::memfd_create(c"unsealed".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    // SAFETY: the fd is new, and no other code owns it.
    let unsealed = unsafe { fs::File::from_raw_fd(unsealed) };
    unsealed.set_len(1 << 28).unwrap();
    for (fd, text) in [
        (-1, "named no descriptor"),
        (1 << 20, "must keep it open"),
        (empty.as_raw_fd(), "whose file does not have the allocation"),
        (folder.as_raw_fd(), "whose file does not have the allocation"),
        (reader.as_raw_fd(), "whose file does not have the allocation"),
        (unsealed.as_raw_fd(), "not sealed against shrinking"),
    ] {
        set_named(fd);
        let error = exports.export(&region).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    set_named(0);
    exports.unexport(&region, export).unwrap();
    for region in [first, region] {
        // SAFETY: not used any more.
        unsafe { provider.free(region) }.unwrap();
    }
}

#[test]
fn second_process_opens_file_memory_without_the_plugin() {
    const PLACE: &str = "PLUGIN_TEST_OFFSET";
    if let Some(offset) = std::env::var_os(PLACE) {
        // The second process: standard input is the exported descriptor.
        let offset = offset.to_str().unwrap().parse().unwrap();
        let fd = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
        let import = FdImport::trust_writers(kind());
        let imported = import.import(ImportRequest::new(Some(fd), offset, 4096, Access::ReadWrite)).unwrap();
        let memory = imported.base.as_ptr().unwrap();
        // SAFETY: the page is mapped, and the other process waits.
        unsafe {
            assert_eq!(memory.add(100).read_volatile(), 42);
            memory.add(100).write_volatile(43);
            import.release(imported).unwrap();
        }
        return;
    }
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = c_plugin() else { return };
    let provider = PluginLoader::new(&path).symbol("opsFile").kind(kind()).load().unwrap();
    let (first, region) = (page(&provider), page(&provider));
    let export = provider.export().unwrap().export(&region).unwrap();
    let memory = region.base().as_ptr().unwrap();
    // SAFETY: the page is mapped, and only this test uses it.
    unsafe { memory.add(100).write_volatile(42) };
    let name = "second_process_opens_file_memory_without_the_plugin";
    let mut second = Command::new("/proc/self/exe");
    second.args(["--exact", name]).env(PLACE, export.offset.to_string());
    assert!(ran(second.stdin(export.fd.as_ref().unwrap().try_clone().unwrap())), "the second process");
    // SAFETY: as above; the second process has ended.
    assert_eq!(unsafe { memory.add(100).read_volatile() }, 43);
    for region in [first, region] {
        // SAFETY: not used any more.
        unsafe { provider.free(region) }.unwrap();
    }
}

#[test]
fn contract_violations_of_a_plugin_are_errors() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = c_plugin() else { return };
    let probe = Probe::new(&path);
    let provider = PluginLoader::new(&path).kind(kind()).load().unwrap();
    let region = page(&provider);
    let allocate_in = |mode| {
        probe.set_mode(mode);
        let result = provider.allocate(Layout::new(4096, 1).unwrap());
        probe.set_mode(0);
        result.unwrap_err()
    };
    for (mode, text) in [(1, "NULL"), (2, "not aligned")] {
        let error = allocate_in(mode);
        assert!(matches!(error, Error::Untrusted { .. }), "{error}");
        assert!(error.to_string().contains(text) && error.to_string().contains("plugin in-c"), "{error}");
    }
    let error = allocate_in(4);
    assert!(matches!(error, Error::Native { native: 77, hint: "the flux is out", .. }), "{error}");
    let error = provider.allocate(Layout::new(4096, 1 << 20).unwrap()).unwrap_err();
    assert_eq!(error, Error::BadAlignment { align: 1 << 20 });

    let again = page(&provider);
    let error = allocate_in(3);
    assert!(error.to_string().contains("overlaps"), "{error}");
    // SAFETY: allocated above and not used any more.
    unsafe { provider.free(again) }.unwrap();

    let export = provider.export().unwrap().export(&region).unwrap();
    // The exporter claims 1 TiB, but the plugin maps one page.
    let longer = request(export.native.as_slice(), 1 << 40, Access::ReadWrite);
    let import = provider.import().unwrap().import(longer);
    assert!(matches!(import, Err(Error::Untrusted { .. })), "{import:?}");
    // The mapping after the plugin's page is not unmapped with a failed import. The kernel places
    // mappings top-down. SAFETY: a new mapping at an address of the kernel's choice.
    let neighbour = unsafe {
        let (protection, flags) = (libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(core::ptr::null_mut(), 4096, protection, flags, -1, 0)
    };
    assert_ne!(neighbour, libc::MAP_FAILED);
    let import =
        provider.import().unwrap().import(request(export.native.as_slice(), 8192, Access::ReadWrite));
    assert!(matches!(import, Err(Error::Untrusted { .. })), "{import:?}");
    // SAFETY: asks the kernel about an address.
    assert_eq!(unsafe { libc::msync(neighbour, 4096, libc::MS_ASYNC) }, 0, "it was unmapped with the import");
    // SAFETY: mapped above, and nothing refers to it.
    unsafe { libc::munmap(neighbour, 4096) };
    provider.export().unwrap().unexport(&region, export).unwrap();
    // SAFETY: not used any more.
    unsafe { provider.free(region) }.unwrap();
}

#[test]
fn each_version_has_its_members() {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(path) = c_plugin() else { return };
    let loader = |symbol: &str| PluginLoader::new(&path).symbol(symbol).kind(kind());
    // The table has further words after the members of version 1.0, which would be an incomplete
    // group.
    let oldest = loader("ops10").load().unwrap();
    assert!(oldest.properties().is_none() && oldest.export().is_none());
    assert_eq!((oldest.memory_kind(), oldest.visibility()), (MemoryKind::Host, Visibility::Private));

    let newest = loader("ops12").load().unwrap();
    assert_eq!(newest.memory_kind(), MemoryKind::Device, "POINTER_TYPE");
    let region = page(&newest);
    let properties = newest.properties().unwrap();
    assert_eq!(properties.property(&region, Property::Device), Ok(PropertyValue::Handle(0x1234)));
    assert_eq!(properties.property(&region, Property::CacheLine), Ok(PropertyValue::Number(128)));
    assert!(matches!(properties.property(&region, Property::Context), Err(Error::NotSupported { .. })));
    // SAFETY: allocated above and not used.
    unsafe { newest.free(region) }.unwrap();
    let explicit =
        loader("ops12").memory_kind(MemoryKind::Managed).visibility(Visibility::Shared).load().unwrap();
    assert_eq!((explicit.memory_kind(), explicit.visibility()), (MemoryKind::Managed, Visibility::Shared));

    let large = loader("opsLarge").load().unwrap();
    let region = page(&large);
    let export = large.export().unwrap().export(&region).unwrap();
    assert!(export.isolated && export.native.as_slice().is_empty());
    let fd = || export.fd.as_ref().unwrap().try_clone().unwrap();
    let imports = large.import().unwrap();
    let imported = imports.import(ImportRequest::new(Some(fd()), 0, 4096, Access::ReadWrite)).unwrap();
    assert!(imported.host_accessible);
    // SAFETY: not used, and released once.
    unsafe { imports.release(imported) }.unwrap();
    let length = |len| fs::File::from(fd()).set_len(len).unwrap();
    for len in [64, 66] {
        length(len);
        let import = imports.import(ImportRequest::new(Some(fd()), 0, 4096, Access::ReadWrite));
        assert!(matches!(import, Err(Error::Untrusted { .. })), "{len}: {import:?}");
    }
    length(65);
    large.export().unwrap().unexport(&region, export).unwrap();
    // SAFETY: allocated above and not used.
    unsafe { large.free(region) }.unwrap();
    for symbol in ["opsOff", "opsPrivate"] {
        let off = loader(symbol).load().unwrap();
        assert!(off.export().is_none() && off.visibility() == Visibility::Private, "switched off");
    }

    let error = loader("opsHalf").load().unwrap_err();
    assert!(matches!(error, PluginError::Table { fault: TableError::Incomplete { .. }, .. }), "{error}");
    let error = loader("opsNewer").load().unwrap_err();
    let version = TableError::Version { major: 1, minor: 3 };
    assert!(matches!(&error, PluginError::Table { fault, .. } if *fault == version), "{error}");
}
