//! What OCI runtimes say, read once: the only place where a decision depends on words.
//!
//! A container that cannot start because of what its pod or its image asks for will not start on the next try either,
//! and users know the words from other nodes. Everything else may pass.

/// Parts of messages, lower case, that say the container itself is at fault. From crun 1.8–1.28 and runc 1.1–1.5.
const FAULTS: &[&str] = &[
    "executable file",
    "exec format error",
    "no such file or directory",
    "permission denied",
    "not a directory",
    "is a directory",
    "invalid argument",
    "chdir to cwd",
    "unable to find user",
    "unable to find group",
    "operation not permitted",
    "argument list too long",
    "input/output error",
    "too many levels of symbolic links",
    "bad interpreter",
];

/// Marks of the runtimes themselves: without one of them the words come from elsewhere, such as a socket that is gone.
const RUNTIMES: &[&str] = &["runc", "crun", "youki", "oci runtime", "container_linux", "executable file"];

/// The words for the user, when the container itself is at fault.
pub(super) fn fault_of_container(message: &str) -> Option<String> {
    let lower = message.to_lowercase();
    let says = |parts: &[&str]| parts.iter().any(|part| lower.contains(part));
    (says(RUNTIMES) && says(FAULTS)).then(|| message.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_runtimes() {
        let faults = [
            "create task c1 in containerd: failed to create shim task: OCI runtime create failed: runc create failed: \
             unable to start container process: exec: \"nope\": executable file not found in $PATH",
            "start task c1 in containerd: crun create: executable file `nope` not found in $PATH: No such file or directory",
            "runc create failed: unable to start container process: chdir to cwd (\"/x\") set in config.json failed: \
             no such file or directory",
            "crun: exec /bin/arm: Exec format error",
            "OCI runtime create failed: unable to find user nobody99: no matching entries in passwd file",
        ];
        for message in faults {
            assert!(fault_of_container(message).is_some(), "{message}");
        }
        let others = [
            "create task c1 in containerd: ttrpc: closed",
            "dial unix /run/berth/shim/x.sock: connect: no such file or directory",
            "create task c1 in containerd: sandbox s1 not found",
            "runc create failed: context deadline exceeded",
        ];
        for message in others {
            assert_eq!(fault_of_container(message), None, "{message}");
        }
    }
}
