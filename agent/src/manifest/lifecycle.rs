//! Hooks and stop signals. Source: `validateLifecycle`, `validateHandler`, `validateSleepAction` and `validateStopSignal` of
//! `pkg/apis/core/validation/validation.go`.

use std::time::Duration;

use berth_core::spec::{ContainerKind, Hook, Lifecycle, Port};
use k8s_openapi::api::core::v1::{Lifecycle as ApiLifecycle, LifecycleHandler};

use super::{notes::Notes, probe};

/// Signals that have a name of their own. Source: `supportedStopSignalsLinux`.
const SIGNALS: [&str; 34] = [
    "SIGABRT",
    "SIGALRM",
    "SIGBUS",
    "SIGCHLD",
    "SIGCLD",
    "SIGCONT",
    "SIGFPE",
    "SIGHUP",
    "SIGILL",
    "SIGINT",
    "SIGIO",
    "SIGIOT",
    "SIGKILL",
    "SIGPIPE",
    "SIGPOLL",
    "SIGPROF",
    "SIGPWR",
    "SIGQUIT",
    "SIGSEGV",
    "SIGSTKFLT",
    "SIGSTOP",
    "SIGSYS",
    "SIGTERM",
    "SIGTRAP",
    "SIGTSTP",
    "SIGTTIN",
    "SIGTTOU",
    "SIGURG",
    "SIGUSR1",
    "SIGUSR2",
    "SIGVTALRM",
    "SIGWINCH",
    "SIGXCPU",
    "SIGXFSZ",
];

/// What a container asks for of its start and its stop.
pub(super) fn convert(
    notes: &mut Notes<'_>,
    field: &str,
    written: Option<&ApiLifecycle>,
    kind: ContainerKind,
    (ports, grace): (&[Port], Duration),
) -> Lifecycle {
    let Some(written) = written else { return Lifecycle::default() };
    match kind {
        ContainerKind::Main | ContainerKind::Sidecar => {}
        ContainerKind::Init => {
            notes.fault(field, "must not be set for init containers without `restartPolicy: Always`");
        }
        ContainerKind::Ephemeral => notes.fault(field, "must not be set for ephemeral containers"),
    }
    let mut hook = |name: &str, hook: Option<&LifecycleHandler>| {
        self::hook(notes, &format!("{field}.{name}"), hook?, ports, grace)
    };
    let (post_start, pre_stop) =
        (hook("postStart", written.post_start.as_ref()), hook("preStop", written.pre_stop.as_ref()));
    let stop_signal = written.stop_signal.clone().filter(|signal| !signal.is_empty());
    if let Some(signal) = stop_signal.as_deref().filter(|signal| !is_signal(signal)) {
        notes.fault(&format!("{field}.stopSignal"), format!("`{signal}` is no signal"));
    }
    Lifecycle { post_start, pre_stop, stop_signal }
}

fn hook(
    notes: &mut Notes<'_>,
    field: &str,
    written: &LifecycleHandler,
    ports: &[Port],
    grace: Duration,
) -> Option<Hook> {
    let at = |name: &str| format!("{field}.{name}");
    match (&written.exec, &written.http_get, &written.tcp_socket, &written.sleep) {
        (Some(exec), None, None, None) => Some(Hook::Exec(probe::command(notes, &at("exec.command"), exec))),
        (None, Some(get), None, None) => probe::http_get(notes, &at("httpGet"), get, ports).map(Hook::Http),
        (None, None, Some(tcp), None) => {
            probe::port(notes, &at("tcpSocket.port"), &tcp.port, ports).map(|_port| Hook::Tcp)
        }
        (None, None, None, Some(sleep)) => {
            let most = i64::try_from(grace.as_secs()).unwrap_or(i64::MAX);
            let seconds = notes.number(&at("sleep.seconds"), Some(sleep.seconds), 0, most)?;
            Some(Hook::Sleep(Duration::from_secs(seconds)))
        }
        (None, None, None, None) => {
            notes.fault(field, "must have one of `exec`, `httpGet`, `tcpSocket` and `sleep`");
            None
        }
        _ => {
            notes.fault(field, "must have no more than one of `exec`, `httpGet`, `tcpSocket` and `sleep`");
            None
        }
    }
}

/// Whether the API takes a signal: one of a name, or a real-time signal counted from either end.
fn is_signal(name: &str) -> bool {
    let counted = |rest: &str, sign: char, most: u8| {
        let number = rest.strip_prefix(sign).filter(|number| !number.starts_with(['0', '+']));
        let number = number.and_then(|number| number.parse().ok());
        rest.is_empty() || number.is_some_and(|number| (1..=most).contains(&number))
    };
    SIGNALS.contains(&name)
        || name.strip_prefix("SIGRTMIN").is_some_and(|rest| counted(rest, '+', 15))
        || name.strip_prefix("SIGRTMAX").is_some_and(|rest| counted(rest, '-', 14))
}

#[cfg(test)]
mod tests {
    use berth_core::spec::{HttpGet, ProbePort};

    use super::super::{read, tests::origin};
    use super::*;

    fn manifest(lifecycle: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  terminationGracePeriodSeconds: 20\n  os: {{name: linux}}\n  \
             containers:\n  - name: main\n    image: busybox\n    ports: [{{name: http, containerPort: 8080}}]\n    \
             lifecycle: {lifecycle}\n"
        )
    }

    fn lifecycle(text: &str) -> Lifecycle {
        let manifests = read(&manifest(text), &origin()).unwrap();
        assert_eq!(manifests[0].unsupported, [""; 0], "{text}");
        manifests[0].pod.containers[0].lifecycle.clone()
    }

    #[test]
    fn everything_that_can_be_written_is_taken() {
        let get = HttpGet {
            tls: true,
            host: None,
            port: ProbePort::Number(8080),
            path: "/".into(),
            headers: vec![("A".into(), "b".into())],
        };
        let expected = Lifecycle {
            post_start: Some(Hook::Exec(vec!["sh".into(), "-c".into(), "$(NAME)".into()])),
            pre_stop: Some(Hook::Http(get)),
            stop_signal: Some("SIGRTMIN+3".into()),
        };
        let text = "{postStart: {exec: {command: [sh, -c, $(NAME)]}}, preStop: {httpGet: {port: http, scheme: HTTPS, \
                    httpHeaders: [{name: A, value: b}]}}, stopSignal: SIGRTMIN+3}";
        assert_eq!(lifecycle(text), expected);
        let sleeps = lifecycle("{postStart: {tcpSocket: {port: 1}}, preStop: {sleep: {seconds: 20}}}");
        assert_eq!(
            (sleeps.post_start, sleeps.pre_stop),
            (Some(Hook::Tcp), Some(Hook::Sleep(Duration::from_secs(20))))
        );
        assert_eq!(lifecycle("{preStop: {sleep: {seconds: 0}}}").pre_stop, Some(Hook::Sleep(Duration::ZERO)));
        assert_eq!(lifecycle("{}"), Lifecycle::default());
    }

    #[test]
    fn what_the_api_server_refuses_is_refused() {
        for (text, field) in [
            ("{postStart: {}}", "postStart"),
            ("{preStop: {exec: {}}}", "preStop.exec.command"),
            ("{preStop: {exec: {command: [a]}, sleep: {seconds: 1}}}", "preStop"),
            ("{preStop: {httpGet: {port: 0}}}", "preStop.httpGet.port"),
            ("{preStop: {tcpSocket: {port: 0}}}", "preStop.tcpSocket.port"),
            ("{preStop: {sleep: {seconds: 21}}}", "preStop.sleep.seconds"),
            ("{postStart: {sleep: {seconds: -1}}}", "postStart.sleep.seconds"),
            ("{stopSignal: TERM}", "stopSignal"),
            ("{stopSignal: SIGRTMIN+16}", "stopSignal"),
            ("{stopSignal: SIGRTMIN+03}", "stopSignal"),
            ("{stopSignal: SIGRTMAX-15}", "stopSignal"),
            ("{stopSignal: SIGRTMAX-0}", "stopSignal"),
        ] {
            let error = read(&manifest(text), &origin()).unwrap_err().to_string();
            let field = format!("spec.containers[0].lifecycle.{field}");
            assert!(error.contains(&field), "{text}: {error}");
        }
        for name in ["SIGRTMIN", "SIGRTMIN+15", "SIGRTMAX", "SIGRTMAX-14", "SIGUSR1", "SIGKILL"] {
            assert!(is_signal(name), "{name}");
        }
        let init = "  initContainers: [{name: first, image: busybox, lifecycle: {preStop: {sleep: {seconds: 1}}}}]\n";
        let error = read(&format!("{}{init}", manifest("{}")), &origin()).unwrap_err().to_string();
        assert!(error.contains("spec.initContainers[0].lifecycle"), "{error}");
    }
}
