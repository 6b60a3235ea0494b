//! `kubectl debug`: a container that joins a pod which runs.

use anyhow::{Result, ensure};
use serde_json::Value;

use super::Served;
use super::attach::code_of;
use super::kubectl::{Protocol, TARGET, output};
use crate::api_pods::path;
use crate::kit::IMAGE;
use crate::suite::same;

pub(super) fn all(served: &Served) -> Result<()> {
    let before = served.cluster.get_json(&path(TARGET))?;
    let image = format!("--image={IMAGE}");
    // It sees the processes of the container that it is to look at.
    let script = "tr '\\0' ' ' </proc/1/cmdline; exit 3";
    let look = ["debug", TARGET, &image, "--container=look", "--target=main", "--", "sh", "-c", script];
    served.cluster.kubectl(&look)?;
    let over = |pod: &Value| code_of(pod, "look") == Some(3);
    served.cluster.wait_for(&path(TARGET), "looked at", over)?;
    let said = served.cluster.kubectl(&["logs", TARGET, "-c", "look"])?;
    ensure!(said.contains("sleep infinity & while"), "the first process is {said:?}");

    for protocol in Protocol::BOTH {
        let container = format!("--container=asks-{}", protocol.name());
        let asks = ["debug", "-i", "--quiet", TARGET, &image, &container, "--", "sh", "-c"];
        let mut command =
            protocol.kubectl(served, &[&asks[..], &["echo asks; read word; echo heard $word"]].concat())?;
        output(&mut command, b"hello\n")?;
        let name = format!("asks-{}", protocol.name());
        served.cluster.wait_for(&path(TARGET), "answered", |pod| code_of(pod, &name) == Some(0))?;
        let said = served.cluster.kubectl(&["logs", TARGET, "-c", &name])?;
        same(&format!("what it heard over {protocol:?}"), said.as_str(), "asks\nheard hello\n")?;
    }
    let after = served.cluster.get_json(&path(TARGET))?;
    let of = |pod: &Value| pod["status"]["containerStatuses"].clone();
    same("the containers of before", of(&after), of(&before))
}
