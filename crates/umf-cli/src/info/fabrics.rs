//! `umf info`, group "fabrics": libfabric as `umf::remote` uses it, the providers that it offers,
//! and where this process would serve its memory to other machines.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use umf::settings::{Loader, Origin, Row, Settings};

use super::finding::{Finding, Group, ask};
use super::mpi::untried;
use super::transfer::{Role, run_in_child};
use crate::child::ChildError;

/// The settings that direct a server, and the library of all remote memory.
const SETTINGS: [&str; 3] = ["remote.library", "remote.provider", "remote.interface"];

/// Looks for libfabric, and serves for a moment.
pub(super) fn probe() -> Group {
    // A provider that crashes ends only the child that has tried it.
    let queried = run_in_child::<Queried>(&Role::Fabrics);
    let served = run_in_child::<Served>(&Role::ServeRemote);
    let (libfabric, providers, directed) = queried_findings(queried);
    let findings = vec![libfabric, providers, serve(served), directed];
    Group { key: "fabrics", title: "Memory of other machines (umf::remote, over libfabric)", findings }
}

/// What a child finds without opening a provider.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Queried {
    /// The version of libfabric and the names of its providers.
    offered: Result<(String, Vec<String>), Refused>,
    /// The settings that direct a server, with their origins.
    directed: Result<Vec<String>, String>,
}

/// The address of a server, with its provider.
pub(super) type Served = Result<String, Refused>;

/// Why there are no providers, or no server.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Refused {
    reason: String,
    cause: Cause,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Cause {
    NoLibrary,
    NoProvider,
    Other,
}

impl Refused {
    fn of(error: &umf::Error) -> Self {
        use umf::remote::Error::{NoLibrary, NoProvider};
        match error {
            umf::Error::Remote(NoLibrary(why)) => Self { reason: why.clone(), cause: Cause::NoLibrary },
            umf::Error::Remote(NoProvider { wanted, .. }) => {
                Self { reason: format!("no provider fits (wanted: {wanted})"), cause: Cause::NoProvider }
            }
            error => Self { reason: error.to_string(), cause: Cause::Other },
        }
    }

    const fn remedy(&self) -> &'static str {
        match self.cause {
            Cause::NoLibrary => "Install libfabric (Debian: libfabric1), or name it with UMF_REMOTE_LIBRARY.",
            Cause::NoProvider => {
                "Leave out UMF_REMOTE_PROVIDER and UMF_REMOTE_INTERFACE, or set what `fi_info -l` lists (Debian: \
                 libfabric-bin)."
            }
            Cause::Other => "See FI_LOG_LEVEL=warn, and choose another provider with UMF_REMOTE_PROVIDER.",
        }
    }
}

/// Asks libfabric for its providers, and reads the settings. Runs in a child.
pub(super) fn query() -> Queried {
    let offered = umf::remote::providers().map_err(|error| Refused::of(&error));
    let settings = Settings::load(Loader::new()).map_err(|error| error.to_string());
    Queried { offered, directed: settings.map(|settings| directed(&settings)) }
}

/// Starts a server, and stops it. Runs in a child.
pub(super) fn try_to_serve() -> Served {
    umf::remote::serve().map(|serving| serving.address()).map_err(|error| Refused::of(&error))
}

fn queried_findings(reply: Result<Queried, ChildError>) -> (Finding, Finding, Finding) {
    let libfabric = ask("library", "Other machines read exported memory through it.");
    let providers = ask("providers", "Those that can read remote memory; the first of a network serves.");
    let directed = ask("directed", "The settings that choose where to serve.");
    let queried = match reply {
        Ok(queried) => queried,
        Err(error) => {
            let untried = |question| untried(question, "a child", &error);
            return (untried(libfabric), untried(providers), untried(directed));
        }
    };
    let directed = match queried.directed {
        Ok(set) if set.is_empty() => directed.ok("by nothing: the first that fits").value(json!(set)),
        Ok(set) => directed.ok(set.join("; ")).value(json!(set)),
        Err(why) => {
            let remedy = "Correct the settings: `umf config` shows them.";
            directed.limited(format!("unknown: {why}"), remedy).value(Value::Null)
        }
    };
    let (version, names) = match queried.offered {
        Ok(offered) => offered,
        Err(refused) => {
            let remedy = refused.remedy();
            let text = if refused.cause == Cause::NoLibrary { "not found" } else { refused.reason.as_str() };
            let libfabric = libfabric.missing(text, remedy).value(Value::Null);
            let providers = providers.missing("none without libfabric", remedy).value(Value::Null);
            return (libfabric, providers, directed);
        }
    };
    let libfabric = libfabric.ok(format!("libfabric, version {version}")).value(version);
    let providers = if names.is_empty() {
        let remedy = "Install a libfabric with the provider tcp, verbs or efa (Debian: libfabric1).";
        providers.missing("none", remedy)
    } else {
        providers.ok(names.join(", "))
    };
    (libfabric, providers.value(json!(names)), directed)
}

fn serve(reply: Result<Served, ChildError>) -> Finding {
    let question =
        ask("serve", "Where umf::remote::serve() listens, at a port of its own. Tried for a moment.");
    match reply {
        Ok(Ok(served)) => {
            let (text, is_loopback) = place(&served);
            if is_loopback {
                let remedy = "Connect the machine to a network, or set UMF_REMOTE_INTERFACE to its address.";
                let finding = question.limited(format!("{text}, which is of this machine only"), remedy);
                finding.value(text)
            } else {
                question.ok(text)
            }
        }
        Ok(Err(refused)) if refused.cause == Cause::NoLibrary => {
            question.missing("nowhere: there is no libfabric", refused.remedy()).value(Value::Null)
        }
        Ok(Err(refused)) => {
            question.missing(format!("nowhere: {}", refused.reason), refused.remedy()).value(Value::Null)
        }
        Err(error) => untried(question, "a child", &error),
    }
}

/// Returns provider and address without the port, which is another one each time; and whether
/// other machines cannot reach it. `served` is "ADDRESS (PROVIDER)".
fn place(served: &str) -> (String, bool) {
    let Some((address, provider)) = served.strip_suffix(')').and_then(|text| text.rsplit_once(" (")) else {
        return (served.to_owned(), false);
    };
    match address.parse::<SocketAddr>() {
        Ok(socket) => (format!("{provider} at {}", socket.ip()), socket.ip().is_loopback()),
        Err(_) => (format!("{provider} at {address}"), false),
    }
}

/// Returns the settings that choose library, provider and interface, with their origins.
fn directed(settings: &Settings) -> Vec<String> {
    let rows = settings.loaded().rows();
    let is_set = |row: &&Row| SETTINGS.contains(&row.key.as_str()) && row.origin != Origin::Default;
    let set = rows.iter().filter(is_set);
    set.map(|row| format!("{} = {} ({})", row.key, row.value, row.origin)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::info::finding::FindingState;

    #[test]
    fn place_is_provider_and_host() {
        for (served, text, is_loopback) in [
            ("10.1.2.3:4711 (tcp;ofi_rxm)", "tcp;ofi_rxm at 10.1.2.3", false),
            ("127.0.0.1:4711 (tcp)", "tcp at 127.0.0.1", true),
            ("[fe80::1]:9 (tcp)", "tcp at fe80::1", false),
            ("umf-12ab (umf)", "umf at umf-12ab", false),
            ("odd", "odd", false),
        ] {
            assert_eq!(place(served), (text.to_owned(), is_loopback));
        }
    }

    #[test]
    fn missing_library_is_found_with_remedy() {
        let refused = || Refused { reason: "no such file".to_owned(), cause: Cause::NoLibrary };
        let queried = Queried { offered: Err(refused()), directed: Ok(Vec::new()) };
        let (library, providers, directed) = queried_findings(Ok(queried));
        assert_eq!(directed.state, FindingState::Ok);
        let serve = serve(Ok(Err(refused())));
        for finding in [library, providers, serve] {
            assert_eq!(finding.state, FindingState::Missing);
            assert!(finding.remedy.unwrap().contains("libfabric1"));
        }
    }

    #[test]
    fn loopback_is_limited() {
        assert_eq!(serve(Ok(Ok("127.0.0.1:1 (tcp)".to_owned()))).state, FindingState::Limited);
        assert_eq!(serve(Ok(Ok("10.0.0.1:1 (tcp)".to_owned()))).state, FindingState::Ok);
    }
}
