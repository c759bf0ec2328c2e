//! Containers of bubblewrap and crun, and the host in their place: each runs a
//! [`keeper`](crate::keeper) with actors.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};
use umf_tests::{Failure, Patience};

use crate::seccomp;

/// Limit for an answer, as [`Patience`] counts it.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The capabilities that Docker gives to a container, without `CAP_`.
const CAPABILITIES: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// The program that makes a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tool {
    /// bubblewrap.
    Bwrap,
    /// An OCI runtime, with a configuration such as Docker and Kubernetes write.
    Crun,
}

impl Tool {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Bwrap => "bwrap",
            Self::Crun => "crun",
        }
    }

    const fn package(self) -> &'static str {
        match self {
            Self::Bwrap => "bubblewrap",
            Self::Crun => "crun",
        }
    }
}

/// Description of a container.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// `None`: the host.
    pub(crate) tool: Option<Tool>,
    pub(crate) is_filtered: bool,
    pub(crate) has_host_pids: bool,
    pub(crate) has_host_network: bool,
    /// The uid, inside of the container, in a user namespace of its own.
    pub(crate) user_namespace: Option<u32>,
    /// The uid, on the host, of the tool.
    pub(crate) started_by: Option<u32>,
    /// Folder of the host and its path in the container.
    pub(crate) directory: Option<(PathBuf, String)>,
    pub(crate) variables: Vec<(String, String)>,
}

/// Files that all containers of a run use.
pub(crate) struct Workshop {
    root: tempfile::TempDir,
    count: std::cell::Cell<u32>,
}

impl Workshop {
    /// Copies the programs to a folder that every user can read.
    pub(crate) fn new() -> io::Result<Self> {
        let open = fs::Permissions::from_mode(0o755);
        let root = tempfile::Builder::new().prefix("umf-containers-").permissions(open.clone()).tempdir()?;
        let here = std::env::current_exe()?;
        let programs = root.path().join("programs");
        fs::create_dir(&programs)?;
        fs::set_permissions(&programs, open.clone())?;
        let copy = |from: PathBuf, name: &str| {
            let to = programs.join(name);
            fs::copy(from, &to).and_then(|_| fs::set_permissions(to, open.clone()))
        };
        copy(here.with_file_name("umf-actor"), "umf-actor")?;
        copy(here.clone(), "umf-containers")?;
        // Cargo puts the driver there as a dependency of tests.
        copy(here.with_file_name("deps").join("libcuda_soft.so"), "libcuda.so.1")?;
        for (number, program) in seccomp::programs().iter().enumerate() {
            fs::write(root.path().join(format!("seccomp{number}")), program)?;
        }
        Ok(Self { root, count: std::cell::Cell::new(0) })
    }

    /// Returns a new path in this run's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.count.set(self.count.get() + 1);
        self.root.path().join(format!("{name}{}", self.count.get()))
    }

    /// Returns why this process cannot use a tool.
    pub(crate) fn lacks(&self, tool: Tool) -> Option<String> {
        let (name, package) = (tool.name(), tool.package());
        let path = std::env::var_os("PATH").unwrap_or_default();
        if !std::env::split_paths(&path).any(|folder| folder.join(name).is_file()) {
            return Some(format!("no {name} (apt-get install {package})"));
        }
        let needs_root = tool == Tool::Crun && !self.is_root();
        needs_root.then(|| "crun needs root, or control groups that are delegated".to_owned())
    }

    /// Creates a directory with this mode.
    pub(crate) fn directory(&self, mode: u32) -> io::Result<PathBuf> {
        let path = self.path("directory");
        fs::create_dir(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        Ok(path)
    }

    /// Returns whether this process is the machine's root, which has users to give away. The root
    /// of a user namespace with one user has not.
    pub(crate) fn is_root(&self) -> bool {
        let uid_map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
        umf_tests::machine::is_root() && uid_map.split_ascii_whitespace().nth(2) != Some("1")
    }

    fn programs(&self) -> PathBuf {
        self.root.path().join("programs")
    }

    /// Starts a container, and waits until its keeper answers.
    ///
    /// # Errors
    /// Why the machine does not allow such a container, with the tool's own words.
    pub(crate) fn start(&self, plan: &Plan) -> io::Result<Container> {
        let log = self.path("log");
        let mut command = match plan.tool {
            None => self.host(),
            Some(Tool::Bwrap) => self.bwrap(plan),
            Some(Tool::Crun) => self.crun(plan)?,
        };
        if let Some(uid) = plan.started_by {
            command.uid(uid).gid(uid);
        }
        if plan.tool.is_none() {
            command.envs(plan.variables.iter().map(|(name, value)| (name, value)));
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().ok_or_else(|| io::Error::other("no pipe"))?);
        let (sender, answers) = channel();
        // Ends with the container, or with the receiver.
        std::thread::spawn(move || {
            for line in output.lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut container = Container { child, input, answers, log };
        match container.line("ping") {
            Ok(_) => Ok(container),
            Err(failure) => {
                let log = container.log();
                let said =
                    log.lines().rfind(|line| !line.contains("hybrid mode")).unwrap_or(&failure.message);
                Err(io::Error::other(said.to_owned()))
            }
        }
    }

    fn host(&self) -> Command {
        let mut command = Command::new(self.programs().join("umf-containers"));
        let driver = ("LD_LIBRARY_PATH", self.programs());
        command.arg("keep").env_clear().env("PATH", "/usr/bin").env(driver.0, driver.1);
        command
    }

    fn bwrap(&self, plan: &Plan) -> Command {
        let mut command = Command::new("sh");
        // bubblewrap reads filters from inherited descriptors.
        let filters: [PathBuf; 2] = [0, 1].map(|number| self.root.path().join(format!("seccomp{number}")));
        command.args(["-c", r#"exec 8<"$0" 9<"$1"; shift; exec bwrap "$@""#]).args(&filters);
        if plan.is_filtered {
            command.args(["--add-seccomp-fd", "8", "--add-seccomp-fd", "9"]);
        }
        command.args(["--die-with-parent", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]);
        command.args(["--ro-bind", "/usr", "/usr"]);
        for link in root_links() {
            command.args(["--symlink", &format!("usr/{link}"), &format!("/{link}")]);
        }
        command.arg("--ro-bind").arg(self.programs()).arg("/umf");
        command.args(["--dev", "/dev", "--tmpfs", "/tmp"]);
        if plan.has_host_pids {
            command.args(["--bind", "/proc", "/proc"]);
        } else {
            command.args(["--unshare-pid", "--proc", "/proc"]);
        }
        if !plan.has_host_network {
            command.arg("--unshare-net");
        }
        match plan.user_namespace {
            Some(uid) => {
                let uid = uid.to_string();
                command.args(["--unshare-user", "--uid", &uid, "--gid", &uid]);
            }
            None => {
                command.args(["--cap-drop", "ALL"]);
                for capability in CAPABILITIES {
                    command.args(["--cap-add", &format!("CAP_{capability}")]);
                }
            }
        }
        if let Some((host, path)) = &plan.directory {
            // bubblewrap creates the folders above a mount for its own user alone.
            let above: Vec<&Path> = Path::new(path).ancestors().skip(1).collect();
            for folder in above.into_iter().rev().skip(1) {
                command.args(["--perms", "0755", "--dir"]).arg(folder);
            }
            command.arg("--bind").arg(host).arg(path);
        }
        command.args(["--clearenv", "--setenv", "PATH", "/usr/bin", "--setenv", "LD_LIBRARY_PATH", "/umf"]);
        for (name, value) in &plan.variables {
            command.args(["--setenv", name, value]);
        }
        command.args(["--", "/umf/umf-containers", "keep"]);
        command
    }

    fn crun(&self, plan: &Plan) -> io::Result<Command> {
        let bundle = self.path("bundle");
        let rootfs = bundle.join("rootfs");
        for folder in ["usr", "umf", "proc", "dev", "tmp"] {
            fs::create_dir_all(rootfs.join(folder))?;
        }
        for link in root_links() {
            symlink(format!("usr/{link}"), rootfs.join(link))?;
        }
        if let Some((_, path)) = &plan.directory {
            fs::create_dir_all(rootfs.join(path.trim_start_matches('/')))?;
        }
        let configuration = self.configuration(plan);
        fs::write(bundle.join("config.json"), configuration.to_string())?;
        // crun refuses a hierarchy of version 2 beside others: it gets a mount namespace without
        // that.
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", r#"umount /sys/fs/cgroup/unified 2>/dev/null; exec "$0" "$@""#]);
        command.args(["crun", "--cgroup-manager=disabled", "--root"]).arg(bundle.join("state"));
        command.args(["run", "--bundle"]).arg(&bundle).arg(bundle.file_name().unwrap_or_default());
        Ok(command)
    }

    /// Returns the OCI configuration of a container, as Docker would write it.
    fn configuration(&self, plan: &Plan) -> Value {
        let capabilities: Vec<String> = CAPABILITIES.iter().map(|name| format!("CAP_{name}")).collect();
        let mut variables = vec!["PATH=/usr/bin".to_owned(), "LD_LIBRARY_PATH=/umf".to_owned()];
        variables.extend(plan.variables.iter().map(|(name, value)| format!("{name}={value}")));
        let bind = |source: &Path, path: &str, mode: &str| json!({ "destination": path, "type": "bind", "source": source, "options": ["rbind", mode] });
        let mut mounts = vec![
            bind(Path::new("/usr"), "/usr", "ro"),
            bind(&self.programs(), "/umf", "ro"),
            json!({ "destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"] }),
            json!({ "destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"] }),
        ];
        let mut namespaces =
            vec![json!({ "type": "mount" }), json!({ "type": "ipc" }), json!({ "type": "uts" })];
        if plan.has_host_pids {
            mounts.push(bind(Path::new("/proc"), "/proc", "rw"));
        } else {
            mounts.push(json!({ "destination": "/proc", "type": "proc", "source": "proc" }));
            namespaces.push(json!({ "type": "pid" }));
        }
        if !plan.has_host_network {
            namespaces.push(json!({ "type": "network" }));
        }
        if let Some((host, path)) = &plan.directory {
            mounts.push(bind(host, path, "rw"));
        }
        let mut linux = json!({ "namespaces": namespaces });
        if plan.is_filtered {
            linux["seccomp"] = seccomp::oci();
        }
        json!({
            "ociVersion": "1.0.0",
            "root": { "path": "rootfs", "readonly": true },
            "mounts": mounts,
            "linux": linux,
            "process": {
                "terminal": false, "cwd": "/", "noNewPrivileges": false,
                "user": { "uid": 0, "gid": 0 },
                "args": ["/umf/umf-containers", "keep"],
                "env": variables,
                "capabilities": {
                    "bounding": capabilities, "effective": capabilities, "permitted": capabilities,
                },
            },
        })
    }
}

/// Returns those of the folders of programs and libraries that are links into `/usr`.
fn root_links() -> Vec<&'static str> {
    let all = ["bin", "sbin", "lib", "lib64"];
    all.into_iter().filter(|name| Path::new("/").join(name).is_symlink()).collect()
}

fn failed(message: &str) -> Failure {
    Failure { variant: "Keeper".to_owned(), message: message.to_owned() }
}

/// A running container, or the host. Dropping it ends all of its processes.
pub(crate) struct Container {
    child: Child,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
    log: PathBuf,
}

impl Container {
    /// Sends a line to the keeper and returns its answer.
    fn line(&mut self, line: &str) -> Result<String, Failure> {
        self.begin(line)?;
        self.answer()
    }

    fn begin(&mut self, line: &str) -> Result<(), Failure> {
        let input = self.input.as_mut().ok_or_else(|| failed("it was ended"))?;
        writeln!(input, "{line}").map_err(|error| failed(&error.to_string()))
    }

    /// Waits for the answer to a command that [`begin_to_ask`](Self::begin_to_ask) has sent.
    pub(crate) fn answer(&mut self) -> Result<String, Failure> {
        let mut patience = Patience::new(TIMEOUT);
        let answer = loop {
            let wait = patience.next_wait().ok_or_else(|| failed("no answer in time: a hang"))?;
            match self.answers.recv_timeout(wait) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(failed("it has ended")),
            }
        };
        match answer.split_once(' ').unwrap_or((&answer, "")) {
            ("ok", rest) => Ok(rest.to_owned()),
            (_, rest) => {
                let (variant, message) = rest.split_once(' ').unwrap_or((rest, ""));
                Err(Failure { variant: variant.to_owned(), message: message.to_owned() })
            }
        }
    }

    /// Starts an actor, as another user than the keeper if there is one.
    pub(crate) fn start(&mut self, name: &str, uid: Option<u32>) -> Result<(), Failure> {
        let uid = uid.map_or_else(|| "-".to_owned(), |uid| uid.to_string());
        self.line(&format!("start {name} {uid}")).map(|_| ())
    }

    /// Kills an actor with SIGKILL.
    pub(crate) fn kill(&mut self, name: &str) -> Result<(), Failure> {
        self.line(&format!("kill {name}")).map(|_| ())
    }

    /// Sends a command to an actor.
    pub(crate) fn ask(&mut self, name: &str, command: &str) -> Result<String, Failure> {
        self.line(&format!("to {name} {command}"))
    }

    /// Sends a command to an actor, and does not wait for its answer.
    pub(crate) fn begin_to_ask(&mut self, name: &str, command: &str) -> Result<(), Failure> {
        self.begin(&format!("to {name} {command}"))
    }

    /// Returns what the processes of the container have written to standard error.
    pub(crate) fn log(&self) -> String {
        fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // The keeper ends with its input.
        self.input = None;
        let mut patience = Patience::new(TIMEOUT);
        while matches!(self.child.try_wait(), Ok(None)) {
            if !patience.sleep() {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
        }
    }
}
