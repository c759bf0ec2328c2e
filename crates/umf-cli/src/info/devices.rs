//! Devices, and the libraries that drive them.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde_json::{Value, json};

use super::finding::{Finding, Group, ask};
use super::{errno, kernel_files, loader_cache};
use crate::sys;

const UDMABUF: &str = "/dev/udmabuf";

/// Probes the devices.
pub(crate) fn probe() -> Group {
    let mut findings = vec![udmabuf()];
    findings.extend(heaps());
    findings.extend(drm());
    findings.push(library(
        "libze_loader.so.1",
        "Opens Level Zero devices.",
        "Install level-zero and intel-level-zero-gpu.",
    ));
    findings.push(library(
        "libcuda.so.1",
        "Opens NVIDIA devices.",
        "Install the NVIDIA driver, or run the container with --gpus all.",
    ));
    findings.push(nvidia());
    Group { key: "devices", title: "Devices", findings }
}

fn udmabuf() -> Finding {
    let question = ask("udmabuf", "Makes dma-bufs, which devices can import, of shared memory.");
    let parameter = |name| kernel_files::number(format!("/sys/module/udmabuf/parameters/{name}")).ok();
    let (size, list) = (parameter("size_limit_mb"), parameter("list_limit"));
    let value = json!({ "size_limit_mb": size, "list_limit": list });
    match sys::create_udmabuf(Path::new(UDMABUF)) {
        Ok(()) => {
            let limit = size.map(|size| format!(", up to {size} MiB each")).unwrap_or_default();
            question.ok(format!("works{limit}")).value(value)
        }
        Err(number) if absent(number) => {
            let remedy = "modprobe udmabuf, or a kernel with CONFIG_UDMABUF.";
            question.missing("not there", remedy).value(Value::Null)
        }
        Err(number) => unusable(question, number, UDMABUF, value),
    }
}

fn heaps() -> Vec<Finding> {
    let why = "Gives dma-bufs that any device of its kind can reach.";
    let heaps = kernel_files::entries("/dev/dma_heap", |_| true);
    if heaps.is_empty() {
        let remedy = "A kernel with CONFIG_DMABUF_HEAPS_SYSTEM.";
        return vec![ask("dma_heap", why).missing("none", remedy).value(Value::Null)];
    }
    let one = |path: &PathBuf| {
        let question = ask(format!("dma_heap/{}", kernel_files::name(path)), why);
        match sys::allocate_from_heap(path) {
            Ok(()) => question.ok("works").value(true),
            Err(number) => unusable(question, number, &path.display().to_string(), Value::Bool(false)),
        }
    };
    heaps.iter().map(one).collect()
}

fn drm() -> Vec<Finding> {
    let why = "Dumb buffers, and importing the dma-bufs of others.";
    let nodes =
        kernel_files::entries("/dev/dri", |name| name.starts_with("card") || name.starts_with("renderD"));
    if nodes.is_empty() {
        let remedy = "Load the driver (modprobe vgem for tests), or pass --device /dev/dri.";
        return vec![ask("drm", why).missing("none", remedy).value(Value::Null)];
    }
    let one = |path: &PathBuf| {
        let name = kernel_files::name(path);
        let driver = std::fs::read_link(format!("/sys/class/drm/{name}/device/driver"));
        let driver = driver.map_or_else(|_| "unknown driver".to_owned(), |link| kernel_files::name(&link));
        let question = ask(format!("drm/{name}"), why);
        let value = json!({ "driver": driver });
        match sys::may_read_and_write(path) {
            Ok(()) => question.ok(driver).value(value),
            Err(number) => unusable(question, number, &path.display().to_string(), value),
        }
    };
    nodes.iter().map(one).collect()
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
        Some((path, number)) => unusable(question, number, &path.display().to_string(), json!(names)),
    }
}

/// A device that is there and cannot be used.
fn unusable(question: super::finding::Question, number: Errno, path: &str, value: Value) -> Finding {
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

fn absent(number: Errno) -> bool {
    matches!(number, Errno::NOENT | Errno::NXIO | Errno::NODEV | Errno::NOTDIR)
}
