//! What of a pod is meant, where it runs, and what a client is told where it does not.

use super::Refusal;
use crate::{
    id::{ContainerId, PodName},
    server::{ContainerPath, PodPath},
    status::{ContainerState, PodStatus},
};

/// What is asked of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Asked {
    /// To run another process in it.
    Exec,
    /// To share the streams of its process.
    Attach,
}

/// The id of the container that is meant, which runs, in the pod that has the name.
///
/// Who asks for another process of a pod with a UID gets one of the pod that has the name now; who asks for its streams is told that it
/// is another. Source: `getExec`, `getRun` and `getAttach` of `server.go`; `findContainer`, which goes by the name alone, and `GetAttach` of
/// `kubelet_pods.go`.
///
/// # Errors
/// 404 for a pod that is not on this node, 500 for a container that it has not or that does not run, and for streams of another pod.
pub fn container_id(
    status: Option<&PodStatus>,
    path: &ContainerPath,
    asked: Asked,
) -> Result<ContainerId, Refusal> {
    let status = status.ok_or_else(no_pod)?;
    let container = &path.container;
    let not_found = || match asked {
        Asked::Exec => Refusal::new(500, format!("container not found ({:?})", container.as_str())),
        Asked::Attach => {
            Refusal::new(500, format!("container {container} not found in pod {}", full_name(&status.name)))
        }
    };
    let found = status.all_containers().find(|found| found.name == *container).ok_or_else(not_found)?;
    let id = match &found.state {
        ContainerState::Running { .. } => found.id.clone().ok_or_else(not_found)?,
        ContainerState::Waiting { .. } | ContainerState::Terminated(_) => return Err(not_found()),
    };
    if asked == Asked::Attach && !is_meant(status, &path.pod) {
        return Err(Refusal::new(500, format!("pod {} not found", full_name(&status.name))));
    }
    Ok(id)
}

/// Whether the pod that has the name, and whose ports are asked for, is the one that is meant.
///
/// Source: `getPortForward` of `server.go`.
///
/// # Errors
/// 404 for a pod that is not on this node.
pub fn meant_pod(status: Option<&PodStatus>, path: &PodPath) -> Result<(), Refusal> {
    let status = status.ok_or_else(no_pod)?;
    if is_meant(status, path) { Ok(()) } else { Err(Refusal::new(404, "pod not found")) }
}

/// What a pod without a sandbox, which has no ports, is told. Source: `GetPortForward` of `kubelet_pods.go`.
///
/// # Errors
/// 500 where there is none.
pub fn has_sandbox<T>(sandbox: Option<T>, name: &PodName) -> Result<T, Refusal> {
    sandbox.ok_or_else(|| Refusal::new(500, format!("pod not found ({:?})", full_name(name))))
}

fn no_pod() -> Refusal {
    Refusal::new(404, "pod does not exist")
}

fn is_meant(status: &PodStatus, path: &PodPath) -> bool {
    path.uid.as_ref().is_none_or(|uid| *uid == status.uid)
}

/// Source: `BuildPodFullName` of `pkg/kubelet/container`.
fn full_name(PodName { namespace, name }: &PodName) -> String {
    format!("{name}_{namespace}")
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        id::{ContainerName, PodUid},
        spec::{ContainerKind, QosClass},
        status::{ContainerStatus, Phase, Terminated},
    };

    fn container(name: &str, state: ContainerState) -> ContainerStatus {
        ContainerStatus {
            name: ContainerName::new(name),
            kind: ContainerKind::Main,
            image: String::new(),
            image_id: String::new(),
            id: Some(ContainerId::from_known(format!("id-{name}"))),
            state,
            last_state: None,
            ready: true,
            started: true,
            restart_count: 0,
            user: None,
            actuated: None,
        }
    }

    fn status() -> PodStatus {
        let running = || ContainerState::Running { started_at: Timestamp::UNIX_EPOCH };
        let ended = Terminated {
            exit_code: 0,
            reason: "Completed".into(),
            message: String::new(),
            started_at: None,
            finished_at: None,
            id: None,
        };
        let waiting = ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: String::new() };
        PodStatus {
            uid: PodUid::new("u1"),
            name: PodName { namespace: "shop".into(), name: "web".into() },
            phase: Phase::Running,
            reason: String::new(),
            message: String::new(),
            terminating: false,
            conditions: Vec::new(),
            host_ips: Vec::new(),
            pod_ips: Vec::new(),
            start_time: None,
            qos: QosClass::BestEffort,
            recursive_read_only: false,
            resources: None,
            init_containers: vec![container("sidecar", running())],
            containers: vec![
                container("app", running()),
                container("done", ContainerState::Terminated(ended)),
                container("crashes", waiting),
            ],
            ephemeral_containers: vec![container("debugger", running())],
        }
    }

    fn path(uid: Option<&str>, container: &str) -> ContainerPath {
        let name = PodName { namespace: "shop".into(), name: "web".into() };
        let pod = PodPath { name, uid: uid.map(PodUid::new) };
        ContainerPath { pod, container: ContainerName::new(container) }
    }

    #[test]
    fn only_what_runs_is_found() {
        let status = status();
        let exec = |name: &str| (500, format!("container not found (\"{name}\")"));
        let attach = |name: &str| (500, format!("container {name} not found in pod web_shop"));
        for (uid, name, found) in [
            (None, "app", true),
            (Some("u1"), "app", true),
            (None, "sidecar", true),
            (None, "debugger", true),
            (None, "done", false),
            (None, "crashes", false),
            (None, "none", false),
        ] {
            let path = path(uid, name);
            for (asked, refused) in [(Asked::Exec, exec(name)), (Asked::Attach, attach(name))] {
                let expected = if found { Ok(format!("id-{name}")) } else { Err(refused) };
                let got = container_id(Some(&status), &path, asked);
                let got = got.map(|id| id.to_string()).map_err(|refusal| (refusal.status, refusal.text));
                assert_eq!(got, expected, "{uid:?} {name}");
            }
        }
        let other = |name, asked| container_id(Some(&status), &path(Some("u2"), name), asked);
        assert_eq!(other("app", Asked::Exec), Ok(ContainerId::from_known("id-app")), "the name counts");
        assert_eq!(other("app", Asked::Attach), Err(Refusal::new(500, "pod web_shop not found")));
        assert_eq!(other("none", Asked::Attach).map_err(|refusal| refusal.text), Err(attach("none").1));
        let refused = container_id(None, &path(None, "app"), Asked::Exec);
        assert_eq!(refused, Err(Refusal::new(404, "pod does not exist")));
    }

    #[test]
    fn ports_are_of_a_pod_that_has_a_sandbox() {
        let status = status();
        let PodPath { name, .. } = path(None, "").pod;
        assert_eq!(meant_pod(Some(&status), &path(Some("u1"), "").pod), Ok(()));
        let refused = meant_pod(Some(&status), &path(Some("u2"), "").pod);
        assert_eq!(refused, Err(Refusal::new(404, "pod not found")));
        assert_eq!(meant_pod(None, &path(None, "").pod), Err(Refusal::new(404, "pod does not exist")));
        assert_eq!(has_sandbox(Some(1), &name), Ok(1));
        assert_eq!(has_sandbox::<u8>(None, &name), Err(Refusal::new(500, "pod not found (\"web_shop\")")));
    }
}
