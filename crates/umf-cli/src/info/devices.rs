//! Devices, and the libraries that drive them.

use rustix::io::Errno;
use serde_json::{Value, json};
use umf::dma_buf::survey::{self, DrmFinding, HeapFinding};
use umf::dma_buf::{Heap, Udmabuf};

use super::bytes::human;
use super::finding::{Finding, Group, Question, ask};
use super::{child, errno, kernel_files, loader_cache};
use crate::sys;

/// Probes the devices.
pub(crate) fn probe() -> Group {
    let mut findings = vec![udmabuf()];
    findings.extend(heaps());
    findings.extend(drm());
    let loader = library(
        "libze_loader.so.1",
        "Finds the drivers of Level Zero devices.",
        "Install the Level Zero loader (Debian: libze1) and the driver of the device.",
    );
    let has_loader = loader_cache::find("libze_loader.so.1").is_some();
    findings.push(loader);
    if has_loader {
        findings.push(level_zero());
    }
    findings.push(cuda());
    findings.push(nvidia());
    Group { key: "devices", title: "Devices", findings }
}

fn udmabuf() -> Finding {
    let question = ask("udmabuf", "Makes dma-bufs, which devices can import, of shared memory.");
    let found = survey::udmabuf();
    let value = json!({
        "size_limit_mb": found.size_limit.map(|bytes| bytes >> 20),
        "list_limit": found.parts_limit,
    });
    match found.works {
        Ok(()) => {
            let size =
                found.size_limit.map(|bytes| format!(", up to {} each", human(bytes))).unwrap_or_default();
            let parts = found.parts_limit.map(|parts| format!(" in {parts} parts")).unwrap_or_default();
            question.ok(format!("works{size}{parts}")).value(value)
        }
        Err(error) => {
            let remedy = "modprobe udmabuf, or a kernel with CONFIG_UDMABUF.";
            unusable(question, &error, Udmabuf::DEVICE, remedy, value)
        }
    }
}

fn heaps() -> Vec<Finding> {
    let why = "Gives dma-bufs that any device of its kind can reach.";
    let heaps = survey::heaps();
    if heaps.is_empty() {
        let remedy = "A kernel with CONFIG_DMABUF_HEAPS_SYSTEM.";
        return vec![ask("dma_heap", why).missing("none", remedy).value(Value::Null)];
    }
    let one = |found: HeapFinding| {
        let question = ask(format!("dma_heap/{}", found.name), why);
        let path = format!("{}/{}", Heap::FOLDER, found.name);
        match found.works {
            Ok(()) => question.ok("works").value(true),
            Err(error) => unusable(question, &error, &path, "Look in /dev/dma_heap.", Value::Bool(false)),
        }
    };
    heaps.into_iter().map(one).collect()
}

fn drm() -> Vec<Finding> {
    let why = "Dumb buffers, and importing the dma-bufs of others.";
    let nodes = survey::drm();
    if nodes.is_empty() {
        let remedy = "Load the driver (modprobe vgem for tests), or pass --device /dev/dri.";
        return vec![ask("drm", why).missing("none", remedy).value(Value::Null)];
    }
    let one = |found: DrmFinding| {
        let question = ask(format!("drm/{}", kernel_files::name(&found.path)), why);
        let value = json!({ "driver": found.driver, "dumb_buffers": found.works.is_ok() });
        match (found.driver, found.works) {
            (Some(driver), Ok(())) => question.ok(format!("{driver}, makes dumb buffers")).value(value),
            // Render nodes make none, and import all the same.
            (Some(driver), Err(_)) => question.ok(driver).value(value),
            (None, Ok(())) => question.ok("works").value(value),
            (None, Err(error)) => {
                let path = found.path.display().to_string();
                unusable(question, &error, &path, "Load the driver.", value)
            }
        }
    };
    nodes.into_iter().map(one).collect()
}

fn library(name: &'static str, why: &'static str, remedy: &str) -> Finding {
    let question = ask(name, why);
    match loader_cache::find(name) {
        Some(path) => {
            let path = path.display().to_string();
            question.ok(path.clone()).value(path)
        }
        None => question.missing("not found", remedy).value(Value::Null),
    }
}

fn level_zero() -> Finding {
    let question = ask("level-zero", "Memory of devices, and handles of it by value.");
    let drivers = match child::level_zero() {
        Ok(child::LevelZero::Drivers(drivers)) => drivers,
        Ok(child::LevelZero::None(why)) => {
            let remedy = "Install the driver of the device (Debian: libze-intel-gpu1), or name one in ZE_ENABLE_ALT_DRIVERS.";
            return question.missing(why, remedy).value(json!([]));
        }
        Err(why) => {
            let remedy = "Look in dmesg; a driver that crashes or hangs cannot be used.";
            return question.limited(format!("not told: {why}"), remedy).value(Value::Null);
        }
    };
    let value = json!(drivers);
    let devices: Vec<String> = drivers
        .iter()
        .flat_map(|driver| &driver.devices)
        .map(|device| format!("{} ({})", device.name, human(device.memory)))
        .collect();
    let versions: Vec<&str> = drivers.iter().filter_map(|driver| driver.version.as_deref()).collect();
    if devices.is_empty() {
        let remedy =
            "Pass the device into the container (--device /dev/dri), and join the groups video and render.";
        return question.missing("a driver, and no device", remedy).value(value);
    }
    question.ok(format!("{}; version {}", devices.join(", "), versions.join(", "))).value(value)
}

fn cuda() -> Finding {
    let question = ask("libcuda.so.1", "Memory of NVIDIA devices, and handles of it by value.");
    let (version, devices) = match child::cuda() {
        Ok(child::Cuda::Found { version, devices }) => (version, devices),
        Ok(child::Cuda::NoLibrary(why)) => {
            let remedy = "Install the NVIDIA driver, or run the container with --gpus all.";
            let text = if why.contains("No such file") { "not found".to_owned() } else { why };
            return question.missing(text, remedy).value(Value::Null);
        }
        Ok(child::Cuda::None(why)) => {
            let remedy = "nvidia-smi says more of the driver and its devices.";
            return question.missing(why, remedy).value(json!({ "devices": [] }));
        }
        Err(why) => {
            let remedy = "Look in dmesg; a driver that crashes or hangs cannot be used.";
            return question.limited(format!("not told: {why}"), remedy).value(Value::Null);
        }
    };
    let names: Vec<String> = devices
        .iter()
        .map(|device| format!("{} ({}: {})", device.name, human(device.memory), device.has.join(", ")))
        .collect();
    let shares = |device: &child::CudaDevice| device.has.iter().any(|has| has == "fds" || has == "fabric");
    let value = json!({ "version": version, "devices": devices });
    let text = format!("CUDA {version}; {}", names.join(", "));
    if devices.iter().all(shares) {
        return question.ok(text).value(value);
    }
    let remedy =
        "Where virtual memory has no descriptors, memory = \"device\" travels by the driver's own handles.";
    question.limited(text, remedy).value(value)
}

fn nvidia() -> Finding {
    let question = ask("nvidia", "The device nodes that libcuda opens.");
    let nodes = kernel_files::entries("/dev", |name| {
        name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok())
    });
    if nodes.is_empty() {
        let remedy = "Load the NVIDIA driver, or run the container with --gpus all.";
        return question.missing("no device nodes", remedy).value(json!([]));
    }
    let names: Vec<String> = nodes.iter().map(|path| kernel_files::name(path)).collect();
    let refused =
        nodes.iter().find_map(|path| sys::may_read_and_write(path).err().map(|number| (path, number)));
    match refused {
        None => question.ok(names.join(" ")).value(names),
        Some((path, number)) => refused_device(question, number, &path.display().to_string(), json!(names)),
    }
}

/// A device of dma-bufs that cannot be used; `absent` is what to do where it is not there.
fn unusable(question: Question, error: &umf::core::Error, path: &str, absent: &str, value: Value) -> Finding {
    let number = error.native_code().map(Errno::from_raw_os_error);
    match (number, error) {
        (Some(number), _) if is_absent(number) => question.missing("not there", absent).value(Value::Null),
        (Some(number), umf::core::Error::Native { hint, .. })
            if errno::refused(number) && !hint.is_empty() =>
        {
            question.missing(format!("there, but refused ({})", errno::name(number)), *hint).value(value)
        }
        (Some(number), _) => refused_device(question, number, path, value),
        (None, error) => {
            question.missing(error.to_string(), format!("Look in dmesg for {path}.")).value(value)
        }
    }
}

/// A device that is there and cannot be used.
fn refused_device(question: Question, number: Errno, path: &str, value: Value) -> Finding {
    let name = errno::name(number);
    let finding = if errno::ran_short(number) {
        question.limited(format!("could not be tried ({name})"), errno::make_room(number))
    } else if errno::refused(number) {
        let remedy = format!("Join the group that owns {path} (ls -l), or allow it in the container.");
        question.missing(format!("there, but refused ({name})"), remedy)
    } else {
        question.missing(format!("there, but does not work ({name})"), format!("Look in dmesg for {path}."))
    };
    finding.value(value)
}

fn is_absent(number: Errno) -> bool {
    matches!(number, Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOTDIR)
}
