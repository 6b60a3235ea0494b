//! A pod that is given to both nodes, and what is done to it.

use serde_json::{Value, json};

pub use crate::registry::EXAMPLE as IMAGE;

/// In a spec: a directory of the node that is no other node's.
pub const HOST_DIR: &str = "@HOST@";
/// Seconds from the end that somebody asks for to the kill.
const GRACE: u64 = 2;

/// A container's script that tells all that it sees, in sections that begin with `== `. Volumes are below `/v`.
pub const TELL: &str = r#"
s() { echo "== $1"; }
s user; id -u; id -g; id -G | tr ' ' '\n' | sort -n; pwd
s env; env | sort
s hosts; cat /etc/hosts
s resolv; cat /etc/resolv.conf
s hostname; hostname; timeout 2 hostname -f 2>/dev/null; cat /etc/hostname /proc/sys/kernel/domainname
s mounts; awk '{o="";i=7;while($i!="-"){split($i,t,":");o=o" "t[1];i++};sub(",fsync=volatile","",$(i+3));print $5,$6,o,$(i+1),$(i+3)}' /proc/self/mountinfo
s process; grep -E '^(Cap|NoNewPrivs|Seccomp:|Groups|Umask)' /proc/self/status; cat /proc/self/oom_score_adj
s limits; cat /proc/self/limits
s devices; ls /dev | sort
s files; [ -d /v ] && find /v | sort | while read -r f; do stat -c '%n %F %a %u:%g' "$f"; [ -f "$f" ] && [ -r "$f" ] && head -c 300 "$f" && echo; done
s end
"#;

/// Waits for ever, and ends at once when it is told to.
pub const STAY: &str = "trap 'exit 0' TERM; sleep infinity & while :; do wait; done";

/// A pod.
#[derive(Debug, Clone)]
pub struct Case {
    /// Its name, which says what is looked at.
    pub name: String,
    /// Its spec without a node.
    pub spec: Value,
    /// Its annotations.
    pub annotations: Value,
    /// Whether the process of its first container is killed when it has come to what it comes to.
    pub dies: bool,
    /// Before this it has not come to what it comes to, however long nothing changes.
    pub until: Option<fn(&Value) -> bool>,
}

impl Case {
    /// A pod of this spec.
    #[must_use]
    pub fn of(name: &str, spec: Value) -> Self {
        let spec = with(json!({ "terminationGracePeriodSeconds": GRACE }), spec);
        Self { name: name.to_owned(), spec, annotations: json!({}), dies: false, until: None }
    }

    /// A pod of one container that tells what it sees and stays; the first fields are the container's, the second the pod's.
    #[must_use]
    pub fn telling(name: &str, container: Value, pod: Value) -> Self {
        Self::scripted(name, &format!("{TELL}\n{STAY}"), container, pod)
    }

    /// A pod of one container that runs a script.
    #[must_use]
    pub fn scripted(name: &str, script: &str, container: Value, pod: Value) -> Self {
        Self::of(name, with(json!({ "containers": [shell("main", script, container)] }), pod))
    }

    /// The same pod, whose first container is killed.
    #[must_use]
    pub fn dies(self) -> Self {
        Self { dies: true, ..self }
    }

    /// The same pod, which comes to this.
    #[must_use]
    pub fn until(self, is_there: fn(&Value) -> bool) -> Self {
        Self { until: Some(is_there), ..self }
    }

    /// The same pod with annotations.
    #[must_use]
    pub fn annotated(self, annotations: Value) -> Self {
        Self { annotations, ..self }
    }

    /// The object for a node: `dir` is what [`HOST_DIR`] stands for.
    ///
    /// # Errors
    /// With such a directory it is no JSON.
    pub fn object(&self, node: &str, dir: &str) -> serde_json::Result<Value> {
        let object = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": self.name,
                "labels": { "app": "differential", "tier": "a" },
                "annotations": with(json!({ "note": "two\nlines \"quoted\"" }), self.annotations.clone()),
            },
            "spec": with(json!({ "nodeName": node }), self.spec.clone()),
        });
        serde_json::from_str(&object.to_string().replace(HOST_DIR, dir))
    }
}

/// A container that runs a script; fields of the second are added or in place of its own.
#[must_use]
pub fn shell(name: &str, script: &str, more: Value) -> Value {
    with(json!({ "name": name, "image": IMAGE, "command": ["/bin/sh", "-c", script] }), more)
}

/// A map with the fields of another added or put in place of its own.
#[must_use]
pub fn with(mut base: Value, more: Value) -> Value {
    if let (Value::Object(base), Value::Object(more)) = (&mut base, more) {
        base.extend(more);
    }
    base
}
