//! `umf info`, group "devices": dma-buf sources, Level Zero and CUDA drivers, device nodes.

use std::ffi::CStr;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umf::dma_buf::{Heap, HeapReport, Udmabuf};

use super::finding::{Finding, Group, Question, ask};
use super::procfs;
use super::transfer::{Role, run_in_child};
use crate::child::ChildError;
use crate::output::format_bytes;
use crate::sys;

/// Probes the devices.
pub(super) fn probe() -> Group {
    let mut findings = vec![udmabuf()];
    findings.extend(heaps());
    findings.extend(level_zero());
    findings.push(cuda());
    findings.push(nvidia());
    Group { key: "devices", title: "Devices", findings }
}

const LOADER: &CStr = c"libze_loader.so.1";

fn udmabuf() -> Finding {
    let question = ask("udmabuf", "Makes dma-bufs, which devices can import, of shared memory.");
    let found = Udmabuf::report();
    let value = json!({
        "size_limit_mb": found.size_limit.map(|bytes| bytes >> 20),
        "list_limit": found.parts_limit,
    });
    match found.works {
        Ok(()) => {
            let size = found
                .size_limit
                .map(|bytes| format!(", up to {} each", format_bytes(bytes)))
                .unwrap_or_default();
            let parts = found.parts_limit.map(|parts| format!(" in {parts} parts")).unwrap_or_default();
            question.ok(format!("works{size}{parts}")).value(value)
        }
        Err(error) => {
            let remedy = "Run `modprobe udmabuf` as root on the host, or use a kernel with CONFIG_UDMABUF.";
            unusable(question, &error, Udmabuf::DEVICE, remedy, value)
        }
    }
}

fn heaps() -> Vec<Finding> {
    let why = "Gives dma-bufs that any device of its kind can reach.";
    let heaps = Heap::reports();
    if heaps.is_empty() {
        let remedy = "A kernel with CONFIG_DMABUF_HEAPS_SYSTEM.";
        return vec![ask("dma_heap", why).missing("none", remedy).value(Value::Null)];
    }
    let one = |found: HeapReport| {
        let question = ask(format!("dma_heap/{}", found.name), why);
        let path = format!("{}/{}", Heap::FOLDER, found.name);
        match found.works {
            Ok(()) => question.ok("works").value(true),
            Err(error) => unusable(question, &error, &path, "Look in /dev/dma_heap.", Value::Bool(false)),
        }
    };
    heaps.into_iter().map(one).collect()
}

/// A driver and its devices, as serialised in a finding.
#[derive(Serialize, Deserialize)]
struct Driver {
    /// Version of the driver's interface.
    version: Option<String>,
    devices: Vec<Device>,
}

#[derive(Serialize, Deserialize)]
struct Device {
    name: String,
    /// Memory size in bytes.
    memory: u64,
    /// Number of subdevices.
    #[serde(skip_serializing_if = "Option::is_none")]
    parts: Option<usize>,
    /// The abilities that umf uses, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    has: Option<Vec<String>>,
}

/// The reply of a child that queried drivers. Drivers start threads, and some crash or hang, so no
/// driver is loaded in this process.
#[derive(Serialize, Deserialize)]
pub(super) struct DriverReply {
    /// Path of the library that was loaded.
    library: Option<String>,
    /// The drivers, or the reason why there are none.
    drivers: Result<Vec<Driver>, String>,
}

/// Loads a library for the rest of the process, and returns its path.
fn load(name: &CStr) -> Option<String> {
    // SAFETY: loading a driver runs its initialisers, in a child that only queries drivers.
    if unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) }.is_null() {
        return None;
    }
    let maps = procfs::text("/proc/self/maps").unwrap_or_default();
    let mut paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    let name = name.to_string_lossy();
    paths.find(|path| path.rsplit('/').next().is_some_and(|file| file.starts_with(&*name))).map(str::to_owned)
}

/// Queries the drivers that the Level Zero loader finds. Runs in a child.
pub(super) fn query_level_zero() -> DriverReply {
    let library = load(LOADER);
    let drivers = umf::level_zero::survey().map_err(|error| error.to_string());
    let driver = |found: umf::level_zero::DriverInfo| Driver {
        version: found.version.map(|(major, minor)| format!("{major}.{minor}")),
        devices: found
            .devices
            .into_iter()
            .map(|device| Device {
                name: device.name,
                memory: device.memory,
                parts: Some(device.sub_devices),
                has: None,
            })
            .collect(),
    };
    DriverReply { library, drivers: drivers.map(|drivers| drivers.into_iter().map(driver).collect()) }
}

/// Queries the CUDA driver. Runs in a child.
pub(super) fn query_cuda() -> DriverReply {
    if let Some(why) = umf::cuda::Driver::load_error(None) {
        return DriverReply { library: None, drivers: Err(why) };
    }
    let device = |found: umf::cuda::DeviceInfo| {
        let has = [
            ("virtual", found.has_virtual),
            ("fds", found.has_fds),
            ("fabric", found.has_fabric),
            ("dma-buf", found.has_dma_buf),
            ("managed", found.has_managed),
        ];
        let has = has.into_iter().filter(|(_, has)| *has).map(|(what, _)| what.to_owned()).collect();
        Device { name: found.name, memory: found.memory, parts: None, has: Some(has) }
    };
    let found = umf::cuda::survey(None).map(|found| Driver {
        version: Some(format!("{}.{}", found.version / 1000, found.version % 1000 / 10)),
        devices: found.devices.into_iter().map(device).collect(),
    });
    let drivers = found.map(|driver| vec![driver]).map_err(|error| error.to_string());
    DriverReply { library: Some("libcuda.so.1".to_owned()), drivers }
}

/// Returns the finding for a child that sent no reply.
fn no_reply(question: Question, error: &ChildError) -> Finding {
    let remedy = "Look in `dmesg`; a driver that crashes or hangs cannot be used.";
    question.limited(format!("unknown: a child {error}"), remedy).value(Value::Null)
}

fn level_zero() -> Vec<Finding> {
    let loader = ask("libze_loader.so.1", "Finds the drivers of Level Zero devices.");
    let question = ask("level-zero", "Memory of devices, and handles of it by value.");
    let DriverReply { library, drivers } = match run_in_child::<DriverReply>(&Role::LevelZero) {
        Ok(found) => found,
        Err(error) => return vec![no_reply(loader, &error), no_reply(question, &error)],
    };
    let Some(path) = library else {
        let remedy = "Install the Level Zero loader (Debian: libze1) and the driver of the device.";
        return vec![loader.missing("not found", remedy).value(Value::Null)];
    };
    let drivers = match drivers {
        Ok(drivers) => drivers,
        Err(why) => {
            let remedy = "Install the driver of the device (Debian: libze-intel-gpu1), or name one in ZE_ENABLE_ALT_DRIVERS.";
            return vec![loader.ok(path), question.missing(why, remedy).value(json!([]))];
        }
    };
    let devices: Vec<String> = drivers
        .iter()
        .flat_map(|driver| &driver.devices)
        .map(|device| format!("{} ({})", device.name, format_bytes(device.memory)))
        .collect();
    let versions: Vec<&str> = drivers.iter().filter_map(|driver| driver.version.as_deref()).collect();
    let found = if devices.is_empty() {
        let remedy =
            "Pass the device into the container (`--device /dev/dri`), and join the groups video and render.";
        question.missing("a driver, and no device", remedy)
    } else {
        question.ok(format!("{}; version {}", devices.join(", "), versions.join(", ")))
    };
    vec![loader.ok(path), found.value(json!(drivers))]
}

fn cuda() -> Finding {
    let question = ask("libcuda.so.1", "Memory of NVIDIA devices, and handles of it by value.");
    let driver = match run_in_child::<DriverReply>(&Role::Cuda) {
        Ok(DriverReply { library: None, drivers: Err(why) }) => {
            let remedy = "Install the NVIDIA driver, or run the container with `--gpus all`.";
            let text = if why.contains("No such file") { "not found".to_owned() } else { why };
            return question.missing(text, remedy).value(Value::Null);
        }
        Ok(DriverReply { drivers: Err(why), .. }) => {
            let remedy = "Run `nvidia-smi` for details about the driver and its devices.";
            return question.missing(why, remedy).value(json!({ "devices": [] }));
        }
        Ok(DriverReply { drivers: Ok(mut drivers), .. }) => drivers.swap_remove(0),
        Err(error) => return no_reply(question, &error),
    };
    let has = |device: &Device| device.has.as_deref().unwrap_or_default().join(", ");
    let names = driver.devices.iter();
    let names =
        names.map(|device| format!("{} ({}: {})", device.name, format_bytes(device.memory), has(device)));
    let version = driver.version.as_deref().unwrap_or("?");
    let text = format!("CUDA {version}; {}", names.collect::<Vec<_>>().join(", "));
    let shares = |device: &Device| device.has.iter().flatten().any(|has| has == "fds" || has == "fabric");
    let finding = if driver.devices.iter().all(shares) {
        question.ok(text)
    } else {
        let remedy = "Where virtual memory has no descriptors, `memory = \"device\"` is exported by the driver's own handles.";
        question.limited(text, remedy)
    };
    finding.value(json!(driver))
}

fn nvidia() -> Finding {
    let question = ask("nvidia", "The device nodes that libcuda opens.");
    let nodes = procfs::entries("/dev", |name| {
        name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok())
    });
    if nodes.is_empty() {
        let remedy = "Load the NVIDIA driver, or run the container with `--gpus all`.";
        return question.missing("no device nodes", remedy).value(json!([]));
    }
    let names: Vec<String> = nodes.iter().map(|path| procfs::name(path)).collect();
    let refused =
        nodes.iter().find_map(|path| sys::may_read_and_write(path).err().map(|number| (path, number)));
    match refused {
        None => question.ok(names.join(" ")).value(names),
        Some((path, number)) => refused_device(question, number, &path.display().to_string(), json!(names)),
    }
}

/// Returns the finding for an unusable dma-buf device. `absent` is the remedy if the device node
/// does not exist.
fn unusable(question: Question, error: &umf::MemoryError, path: &str, absent: &str, value: Value) -> Finding {
    let number = error.native_code().map(Errno::from_raw_os_error);
    match (number, error) {
        (Some(number), _) if is_absent(number) => question.missing("not there", absent).value(Value::Null),
        (Some(number), umf::MemoryError::Native { hint, .. })
            if procfs::is_denied(number) && !hint.is_empty() =>
        {
            question
                .missing(format!("there, but refused ({})", procfs::errno_name(number)), *hint)
                .value(value)
        }
        (Some(number), _) => refused_device(question, number, path, value),
        (None, error) => {
            question.missing(error.to_string(), format!("Look in `dmesg` for {path}.")).value(value)
        }
    }
}

/// Returns the finding for a device node that exists and cannot be used.
fn refused_device(question: Question, number: Errno, path: &str, value: Value) -> Finding {
    let name = procfs::errno_name(number);
    let finding = if procfs::is_temporary_shortage(number) {
        question.limited(format!("could not be tried ({name})"), procfs::shortage_remedy(number))
    } else if procfs::is_denied(number) {
        let remedy =
            format!("Join the group that owns {path} (`ls -l {path}`), or allow it in the container.");
        question.missing(format!("there, but refused ({name})"), remedy)
    } else {
        question.missing(format!("there, but does not work ({name})"), format!("Look in `dmesg` for {path}."))
    };
    finding.value(value)
}

fn is_absent(number: Errno) -> bool {
    matches!(number, Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOTDIR)
}
