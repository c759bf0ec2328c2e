//! Huge pages, NUMA nodes, and memory that is populated when it is allocated.

use crate::machine;
use std::sync::Mutex;

use crate::machine::{committed, export, fd, free, in_child, is_root, layout, pointer, shared, touch};
use umf_core::{Error, Properties, Property, PropertyValue, Provider, Region};
use umf_provider_host::{HostBuilder, HostProvider, HugePages, NodeSet, NodeShare, Numa};

const HUGE: usize = 2 << 20;

fn both() -> [(&'static str, HostBuilder); 2] {
    [("private", HostProvider::builder()), ("shared", shared())]
}

/// Returns the sum of a field of `/proc/self/smaps` over the mappings that begin in a region, in
/// bytes.
fn smaps(region: &Region, field: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let (mut inside, mut sum) = (false, 0);
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        if let Some((start, _)) = first.split_once('-')
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            inside = region.contains(umf_core::Address::from_bits(start));
        } else if inside && first.strip_suffix(':') == Some(field) {
            sum += words.next().and_then(|kib| kib.parse::<usize>().ok()).unwrap_or(0) * 1024;
        }
    }
    sum
}

/// Returns the populated bytes of a private region (`mincore(2)`). `smaps` cannot be used: the
/// kernel merges the region's mapping with adjacent private mappings.
fn resident(region: &Region, pages: &mut [u8; 256]) -> usize {
    let page = rustix::param::page_size();
    assert!(region.size() / page <= pages.len());
    // SAFETY: a live region, and a byte for each of its pages.
    let result = unsafe { libc::mincore(pointer(region).cast(), region.size(), pages.as_mut_ptr()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    pages[..region.size() / page].iter().filter(|&&page| page & 1 == 1).count() * page
}

/// Returns whether this kernel populates pages on request (Linux 5.14).
fn can_populate() -> bool {
    let mut page = [0_u8; 8192];
    let place = page.as_mut_ptr().wrapping_add(page.as_ptr().align_offset(4096));
    // SAFETY: the page is a local variable, and the call does not change its content.
    unsafe { libc::madvise(place.cast(), 4096, libc::MADV_POPULATE_WRITE) == 0 }
}

#[test]
fn populate_adds_pages_on_allocate() {
    if !can_populate() {
        println!("umf-skip: populate_adds_pages_on_allocate: MADV_POPULATE_WRITE needs Linux 5.14");
        return;
    }
    // In a child: memory that other threads touch beside a region may get a huge page that covers
    // a part of the region.
    in_child(|| {
        let mut pages = [0; 256];
        for (what, builder) in both() {
            for (populate, expected) in [(false, 0), (true, 1 << 20)] {
                let provider = builder.clone().populate(populate).build().unwrap();
                let region = provider.allocate(layout(1 << 20)).unwrap();
                let populated = match what {
                    "shared" => usize::try_from(committed(&*fd(&export(&provider, &region)))).unwrap(),
                    _ => resident(&region, &mut pages),
                };
                assert_eq!(populated, expected, "{what}, populate {populate}");
                free(&provider, region);
            }
        }
    });
}

/// Populating more memory than the machine has would trigger the OOM killer, so it is an error
/// before any page is populated.
#[test]
fn populating_more_than_available_is_an_error() {
    for (what, builder) in both().into_iter().chain([("isolated", shared().isolate(true))]) {
        let eager = builder.populate(true).build().unwrap();
        let refused = eager.allocate(layout(1 << 41)).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory { .. }), "{what}: {refused}");
        assert!(refused.to_string().contains("at once"), "{what}: {refused}");
        assert_eq!(eager.statistics().bytes(), 0, "{what}");
        free(&eager, eager.allocate(layout(1 << 20)).unwrap());
    }
}

/// The kernel does not limit the size of a memory file. The provider returns the same error as for
/// private memory if the machine does not have that much.
#[test]
fn allocating_more_than_any_machine_has_is_an_error() {
    if std::fs::read_to_string("/proc/sys/vm/overcommit_memory").is_ok_and(|mode| mode.trim() == "1") {
        println!("umf-skip: allocating_more_than_any_machine_has_is_an_error: vm.overcommit_memory is 1");
        return;
    }
    for (what, builder) in both().into_iter().chain([("isolated", shared().isolate(true))]) {
        let provider = builder.build().unwrap();
        let refused = provider.allocate(layout(1 << 44)).unwrap_err();
        assert!(matches!(refused, Error::OutOfMemory { .. }), "{what}: {refused}");
        free(&provider, provider.allocate(layout(1 << 20)).unwrap());
    }
}

#[test]
fn transparent_huge_pages_are_used() {
    for (what, builder) in both() {
        let provider = builder.huge_pages(HugePages::Transparent).build().unwrap();
        assert_eq!(provider.page_size(), rustix::param::page_size());
        let huge = provider.recommended_page_size(1 << 30);
        assert!(huge > provider.page_size());
        assert_eq!(provider.recommended_page_size(4096), provider.page_size());
        let region = provider.allocate(layout(4 * huge)).unwrap();
        assert!(region.base().is_aligned_to(huge), "{what}");
        touch(&region, 1);
        let (private, shared) = (smaps(&region, "AnonHugePages"), smaps(&region, "ShmemPmdMapped"));
        if private + shared == 0 {
            println!("{what}: no transparent huge pages: the system has disabled them, or has none left");
        }
        free(&provider, region);
        let small = provider.allocate(layout(4096)).unwrap();
        assert_eq!(small.size(), 4096);
        free(&provider, small);
    }
}

/// Exclusive use of the reserved huge pages among the tests of this process and of other processes:
/// the tests compare the number of free pages.
struct Alone {
    _in_process: std::sync::MutexGuard<'static, ()>,
    _on_machine: Option<std::fs::File>,
}

fn alone() -> Alone {
    static IN_PROCESS: Mutex<()> = Mutex::new(());
    let in_process = IN_PROCESS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // All processes can lock a file of the kernel, and it need not be removed.
    let file = std::fs::File::open(Reserved::FILE).ok();
    if let Some(file) = &file {
        let _ = rustix::fs::flock(file, rustix::fs::FlockOperation::LockExclusive);
    }
    Alone { _in_process: in_process, _on_machine: file }
}

/// Reserves more huge pages of the machine until it is dropped.
struct Reserved {
    before: usize,
    _alone: Alone,
}

impl Reserved {
    const FILE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

    /// Returns `None`, after it has reported why, if the machine cannot reserve them.
    fn add(pages: usize) -> Option<Self> {
        let alone = alone();
        let Some(before) = Self::number().filter(|_| is_root()) else {
            println!(
                "umf-skip: host provider: reserving huge pages of 2 MiB needs root and a kernel that has them"
            );
            return None;
        };
        let this = Self { before, _alone: alone };
        let wanted = before + pages;
        if std::fs::write(Self::FILE, wanted.to_string()).is_err() || Self::number() != Some(wanted) {
            println!("umf-skip: host provider: {pages} huge pages could not be reserved");
            return None;
        }
        Some(this)
    }

    fn number() -> Option<usize> {
        std::fs::read_to_string(Self::FILE).ok()?.trim().parse().ok()
    }

    fn free() -> usize {
        let file = Self::FILE.replace("nr_hugepages", "free_hugepages");
        std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse().ok()).expect("a number")
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // The number does not fall below the pages in use, which a failed test may still have.
        let _ = std::fs::write(Self::FILE, self.before.to_string());
    }
}

const STRICT: HugePages = HugePages::Hugetlb { size: HUGE, or_normal: false };
const LENIENT: HugePages = HugePages::Hugetlb { size: HUGE, or_normal: true };

#[test]
fn reserved_huge_pages_are_used_and_released() {
    let Some(_reserved) = Reserved::add(8) else { return };
    let before = Reserved::free();
    for (what, builder) in both()
        .into_iter()
        .chain([("isolated", shared().isolate(true)), ("read-only", shared().read_only_export(true))])
    {
        let provider = builder.huge_pages(STRICT).build().unwrap();
        assert_eq!(provider.page_size(), HUGE);
        assert!(provider.purge().is_none());
        for _ in 0..20 {
            let region = provider.allocate(layout(3 * HUGE - 5)).unwrap();
            assert_eq!(region.size(), 3 * HUGE);
            touch(&region, 6);
            assert_eq!(Reserved::free(), before - 3, "{what}");
            // An allocation beyond the free pages is an error, not a signal.
            let error = provider.allocate(layout((before + 1) * HUGE)).unwrap_err();
            assert!(
                matches!(error, Error::OutOfMemory { .. }) && error.to_string().contains("nr_hugepages"),
                "{error}"
            );
            free(&provider, region);
            assert_eq!(Reserved::free(), before, "{what}");
        }
        let aligned = umf_core::Layout::new(HUGE, 1 << 30).unwrap();
        let region = provider.allocate(aligned).unwrap();
        assert!(region.base().is_aligned_to(1 << 30));
        free(&provider, region);
        drop(provider);
        assert_eq!(Reserved::free(), before, "{what}");
    }
}

/// Pages of 1 GiB can hardly be reserved after boot. The test uses those that were reserved at
/// boot, as in `tests/vm/run numa`.
#[test]
fn gibibyte_pages_are_used_and_released() {
    const GIB: usize = 1 << 30;
    let free_pages = || {
        let text =
            std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages").ok()?;
        text.trim().parse::<usize>().ok()
    };
    let _alone = alone();
    let Some(before @ 1..) = free_pages() else {
        println!("umf-skip: host provider: no huge pages of 1 GiB are reserved on this machine");
        return;
    };
    for (what, builder) in both().into_iter().chain([("isolated", shared().isolate(true))]) {
        let provider =
            builder.huge_pages(HugePages::Hugetlb { size: GIB, or_normal: false }).build().unwrap();
        assert_eq!(provider.page_size(), GIB);
        let region = provider.allocate(layout(5)).unwrap();
        assert_eq!(region.size(), GIB, "{what}");
        assert!(region.base().is_aligned_to(GIB), "{what}");
        for place in [0, GIB - 1] {
            // SAFETY: the first and the last byte of the region.
            unsafe { pointer(&region).add(place).write_volatile(7) };
        }
        assert_eq!(smaps(&region, "KernelPageSize"), GIB, "{what}");
        assert_eq!(free_pages(), Some(before - 1), "{what}");
        // An allocation beyond the free pages is an error, not a signal.
        let error = provider.allocate(layout(before * GIB)).unwrap_err();
        assert!(matches!(error, Error::OutOfMemory { .. }), "{what}: {error}");
        assert!(error.to_string().contains("nr_hugepages"), "{what}: {error}");
        if what != "private" {
            let exported = export(&provider, &region);
            let imports = provider.import().unwrap();
            let imported =
                imports.import(machine::request(&exported, GIB, umf_core::Access::ReadWrite)).unwrap();
            // SAFETY: the import is mapped until it is released.
            assert_eq!(unsafe { imported.base.as_ptr().unwrap().add(GIB - 1).read_volatile() }, 7, "{what}");
            // SAFETY: released once.
            unsafe { imports.release(imported) }.unwrap();
        }
        free(&provider, region);
        drop(provider);
        assert_eq!(free_pages(), Some(before), "{what}");
    }
}

#[test]
fn reserved_huge_pages_are_imported() {
    let Some(_reserved) = Reserved::add(8) else { return };
    let provider = shared().huge_pages(STRICT).build().unwrap();
    let regions = [0, 1].map(|_| provider.allocate(layout(2 * HUGE)).unwrap());
    touch(&regions[1], 77);
    let exported = export(&provider, &regions[1]);
    assert!(exported.offset.is_multiple_of(HUGE as u64));
    let imports = provider.import().unwrap();
    let imported =
        imports.import(machine::request(&exported, 2 * HUGE, umf_core::Access::ReadWrite)).unwrap();
    // SAFETY: the import is mapped until it is released.
    assert_eq!(unsafe { imported.base.as_ptr().unwrap().add(HUGE).read_volatile() }, 77);
    // SAFETY: released once.
    unsafe { imports.release(imported) }.unwrap();
    let mut skewed = machine::request(&exported, HUGE, umf_core::Access::ReadWrite);
    skewed.offset += 4096;
    assert!(matches!(imports.import(skewed), Err(Error::Untrusted { .. })));
    regions.into_iter().for_each(|region| free(&provider, region));
}

#[test]
fn normal_pages_replace_exhausted_huge_pages() {
    let _alone = alone();
    for (what, builder) in both().into_iter().chain([("isolated", shared().isolate(true))]) {
        let provider = builder.huge_pages(LENIENT).build().unwrap();
        // More than the reserved pages of any test machine.
        let regions: Vec<_> = (0..4).map(|_| provider.allocate(layout(64 * HUGE)).unwrap()).collect();
        for region in regions {
            assert!(region.base().is_aligned_to(HUGE), "{what}");
            // SAFETY: the first byte of the region.
            unsafe { pointer(&region).write_volatile(1) };
            free(&provider, region);
        }
    }
}

#[test]
fn unknown_huge_page_sizes_are_errors() {
    for size in [0, 4096, 3 << 20] {
        let huge = HugePages::Hugetlb { size, or_normal: false };
        assert!(matches!(
            HostProvider::builder().huge_pages(huge).build(),
            Err(Error::InvalidArgument { .. })
        ));
    }
    let huge = HugePages::Hugetlb { size: 1 << 23, or_normal: false };
    if !std::path::Path::new("/sys/kernel/mm/hugepages/hugepages-8192kB").exists() {
        for (_, builder) in both() {
            let result = builder.huge_pages(huge).build().and_then(|provider| provider.allocate(layout(1)));
            assert!(result.is_err(), "{result:?}");
        }
    }
}

/// Returns policy and nodes of the page at an offset (`get_mempolicy(2)`); `None` on a kernel
/// without NUMA.
fn policy(region: &Region, place: usize) -> Option<(i32, u64)> {
    const ADDR: libc::c_ulong = 2;
    let mut mode = -1_i32;
    let mut nodes = [0_u64; 16];
    // SAFETY: `mode` and `nodes` are valid for the writes; the address is in a live region.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            nodes.as_mut_ptr(),
            1024_u64,
            pointer(region).add(place),
            ADDR,
        )
    };
    (result == 0).then_some((mode, nodes[0]))
}

#[test]
fn memory_has_the_requested_policy() {
    let node = NodeSet::from_nodes([0]).unwrap();
    let shares = [1, 3].map(|weight| NodeShare { node: 0, weight });
    // MPOL_PREFERRED with no nodes reads back as such or as MPOL_LOCAL.
    let cases: [(Numa, &[i32]); 8] = [
        (Numa::Default, &[0]),
        (Numa::Bind(node), &[2]),
        (Numa::Interleave { nodes: node, part_size: 0 }, &[3]),
        (Numa::Interleave { nodes: node, part_size: 5000 }, &[2]),
        (Numa::Preferred(node), &[1]),
        (Numa::Preferred(NodeSet::EMPTY), &[4, 1]),
        (Numa::Local, &[4, 1]),
        (Numa::Split(Box::new(shares)), &[2]),
    ];
    for (numa, modes) in cases {
        for (what, builder) in both() {
            let provider = match builder.numa(numa.clone()).build() {
                Ok(provider) => provider,
                Err(Error::Native { native: libc::EPERM, .. }) => {
                    println!("umf-skip: host provider: NUMA calls are forbidden here");
                    return;
                }
                Err(error) => panic!("{numa:?}: {error}"),
            };
            let region = provider.allocate(layout(1 << 20)).unwrap();
            touch(&region, 1);
            for place in [0, 300 << 10, (1 << 20) - 1] {
                let Some((mode, nodes)) = policy(&region, place) else {
                    println!("cannot check: this kernel has no NUMA");
                    continue;
                };
                assert!(modes.contains(&mode), "{what} {numa:?}: mode {mode}");
                assert!(mode == 0 || mode == 4 || nodes <= 1, "{what} {numa:?}: nodes {nodes:#x}");
            }
            // The node of the thread, unless the policy names a node.
            let found = provider.property(&region, Property::Node);
            if matches!(numa, Numa::Default | Numa::Local | Numa::Preferred(NodeSet::EMPTY)) {
                assert!(matches!(found, Ok(PropertyValue::Number(_))), "{found:?}");
            } else {
                assert_eq!(found, Ok(PropertyValue::Number(0)));
            }
            free(&provider, region);
            // Again, in a range of the file that had a policy before.
            let region = provider.allocate(layout(1 << 19)).unwrap();
            touch(&region, 1);
            free(&provider, region);
        }
    }
}

#[test]
fn build_with_missing_nodes_is_an_error() {
    let missing = NodeSet::from_nodes([0, 1023]).unwrap();
    for numa in [
        Numa::Bind(missing),
        Numa::Preferred(missing),
        Numa::Interleave { nodes: missing, part_size: 0 },
        Numa::Split(Box::new([NodeShare { node: 1023, weight: 1 }])),
    ] {
        let error = HostProvider::builder().numa(numa).build().unwrap_err();
        assert!(error.to_string().contains("does not exist"), "{error}");
    }
}

#[test]
fn regions_have_properties() {
    for (_, builder) in both() {
        let provider = builder.build().unwrap();
        let region = provider.allocate(layout(1)).unwrap();
        let Ok(PropertyValue::Number(line)) = provider.property(&region, Property::CacheLine) else {
            panic!("no cache line")
        };
        assert!(line.is_power_of_two());
        let node = provider.property(&region, Property::Node).unwrap();
        assert!(matches!(node, PropertyValue::Number(_)), "a region without pages has a node too: {node:?}");
        let id = PropertyValue::Number(region.id().get());
        assert_eq!(provider.property(&region, Property::AllocationId), Ok(id));
        assert!(provider.property(&region, Property::Context).is_err());
        free(&provider, region);
    }
}

/// Makes a system call fail with an error, as the seccomp profiles of container engines do.
fn refuse_system_call(number: libc::c_long, errno: i32) {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let number = u32::try_from(number).unwrap();
    let errno = libc::SECCOMP_RET_ERRNO | u32::try_from(errno).unwrap();
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number) },
        statement(libc::BPF_RET | libc::BPF_K, errno),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    // SAFETY: numbers, and a filter that lives during the call. It applies to the calling child.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter), 0);
    }
}

/// containerd #13610: the default profiles refuse `mbind`.
#[test]
fn binding_that_seccomp_refuses_is_an_error() {
    if !std::path::Path::new("/sys/devices/system/node").exists() {
        println!("umf-skip: binding_that_seccomp_refuses_is_an_error: this kernel has no NUMA");
        return;
    }
    for errno in [libc::EPERM, libc::ENOSYS] {
        in_child(|| {
            refuse_system_call(libc::SYS_mbind, errno);
            let node = NodeSet::from_nodes([0]).unwrap();
            let provider = HostProvider::builder().numa(Numa::Bind(node)).build().unwrap();
            let error = provider.allocate(layout(1 << 16)).unwrap_err();
            assert_eq!(error.native_code(), Some(errno));
            assert!(error.to_string().contains("--cap-add=SYS_NICE"), "{error}");
            // Without a binding, nothing is asked of the kernel.
            let provider = HostProvider::builder().build().unwrap();
            free(&provider, provider.allocate(layout(1 << 16)).unwrap());
        });
        in_child(|| {
            refuse_system_call(libc::SYS_get_mempolicy, errno);
            let node = NodeSet::from_nodes([0]).unwrap();
            let error = HostProvider::builder().numa(Numa::Bind(node)).build().unwrap_err();
            assert!(error.to_string().contains("--cap-add=SYS_NICE"), "{error}");
        });
    }
}
