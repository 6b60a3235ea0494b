//! Probes. Source: `validateProbe` and its neighbours in `pkg/apis/core/validation/validation.go`, `SetDefaults_Probe` and
//! `SetDefaults_HTTPGetAction` of `pkg/apis/core/v1/defaults.go`.

use std::time::Duration;

use berth_core::spec::{ContainerKind, HttpGet, Port, Probe, ProbeHandler, ProbeKind, ProbePort, Probes};
use k8s_openapi::{
    api::core::v1::{Container as ApiContainer, ExecAction, HTTPGetAction, Probe as ApiProbe},
    apimachinery::pkg::util::intstr::IntOrString,
};

use super::{is_port_name, notes::Notes};

const MOST: i64 = i32::MAX as i64;

/// The probes of a container, whose ports have names.
pub(super) fn convert(
    notes: &mut Notes<'_>,
    field: &str,
    written: &ApiContainer,
    kind: ContainerKind,
    ports: &[Port],
) -> Probes {
    let mut one = |name: &str, which: ProbeKind, probe: Option<&ApiProbe>| {
        let field = format!("{field}.{name}");
        let probe = probe?;
        if kind == ContainerKind::Init {
            notes.fault(&field, "must not be set for init containers without `restartPolicy: Always`");
        }
        self::probe(notes, &field, which, probe, ports)
    };
    Probes {
        startup: one("startupProbe", ProbeKind::Startup, written.startup_probe.as_ref()),
        readiness: one("readinessProbe", ProbeKind::Readiness, written.readiness_probe.as_ref()),
        liveness: one("livenessProbe", ProbeKind::Liveness, written.liveness_probe.as_ref()),
    }
}

fn probe(
    notes: &mut Notes<'_>,
    field: &str,
    kind: ProbeKind,
    written: &ApiProbe,
    ports: &[Port],
) -> Option<Probe> {
    let handler = handler(notes, field, written, ports);
    let mut number = |name: &str, value: Option<i32>, default: u32| {
        let value = value.map(i64::from);
        // Zero stands for the default.
        notes
            .number::<u32>(&format!("{field}.{name}"), value, 0, MOST)
            .filter(|value| *value > 0)
            .unwrap_or(default)
    };
    let seconds = |number: u32| Duration::from_secs(number.into());
    let initial_delay = seconds(number("initialDelaySeconds", written.initial_delay_seconds, 0));
    let timeout = seconds(number("timeoutSeconds", written.timeout_seconds, 1));
    let period = seconds(number("periodSeconds", written.period_seconds, 10));
    let successes = number("successThreshold", written.success_threshold, 1);
    let failures = number("failureThreshold", written.failure_threshold, 3);
    let at = format!("{field}.terminationGracePeriodSeconds");
    let grace = notes.number::<u64>(&at, written.termination_grace_period_seconds, 1, MOST);
    match kind {
        ProbeKind::Readiness if grace.is_some() => notes.fault(&at, "must not be set for readinessProbes"),
        ProbeKind::Startup | ProbeKind::Liveness if successes != 1 => {
            notes.fault(&format!("{field}.successThreshold"), "must be 1");
        }
        ProbeKind::Readiness | ProbeKind::Startup | ProbeKind::Liveness => {}
    }
    let grace = grace.map(Duration::from_secs);
    Some(Probe { handler: handler?, initial_delay, timeout, period, successes, failures, grace })
}

fn handler(notes: &mut Notes<'_>, field: &str, written: &ApiProbe, ports: &[Port]) -> Option<ProbeHandler> {
    let at = |name: &str| format!("{field}.{name}");
    match (&written.exec, &written.http_get, &written.tcp_socket, &written.grpc) {
        (Some(exec), None, None, None) => Some(ProbeHandler::Exec(command(notes, &at("exec.command"), exec))),
        (None, Some(get), None, None) => http_get(notes, &at("httpGet"), get, ports).map(ProbeHandler::Http),
        (None, None, Some(tcp), None) => {
            let host = tcp.host.clone().filter(|host| !host.is_empty());
            let port = port(notes, &at("tcpSocket.port"), &tcp.port, ports)?;
            Some(ProbeHandler::Tcp { host, port })
        }
        (None, None, None, Some(grpc)) => {
            let port = notes.number(&at("grpc.port"), Some(grpc.port.into()), 1, 65535)?;
            Some(ProbeHandler::Grpc { port, service: grpc.service.clone().unwrap_or_default() })
        }
        (None, None, None, None) => {
            notes.fault(field, "must have one of `exec`, `httpGet`, `tcpSocket` and `grpc`");
            None
        }
        _ => {
            notes.fault(field, "must have no more than one of `exec`, `httpGet`, `tcpSocket` and `grpc`");
            None
        }
    }
}

/// A command that is run in a container.
pub(super) fn command(notes: &mut Notes<'_>, field: &str, exec: &ExecAction) -> Vec<String> {
    let command = exec.command.clone().unwrap_or_default();
    if command.is_empty() {
        notes.fault(field, "must be there");
    }
    if command.iter().any(|word| word.contains('\0')) {
        notes.fault(field, "must not contain the byte 0");
    }
    command
}

pub(super) fn http_get(
    notes: &mut Notes<'_>,
    field: &str,
    written: &HTTPGetAction,
    ports: &[Port],
) -> Option<HttpGet> {
    let schemes = [("HTTP", false), ("HTTPS", true)];
    let tls = notes.one_of(&format!("{field}.scheme"), written.scheme.as_deref(), &schemes);
    let path = written.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
    let headers = written.http_headers.iter().flatten().enumerate();
    let headers = headers.map(|(index, header)| {
        if !is_header_name(&header.name) {
            let message = format!("`{}` is not the name of a header: letters, digits and -", header.name);
            notes.fault(&format!("{field}.httpHeaders[{index}].name"), message);
        }
        (header.name.clone(), header.value.clone())
    });
    let headers = headers.collect();
    let host = written.host.clone().filter(|host| !host.is_empty());
    let port = port(notes, &format!("{field}.port"), &written.port, ports)?;
    Some(HttpGet { tls, host, port, path: path.to_owned(), headers })
}

/// Source: `ResolveContainerPort` of `pkg/probe/util.go`: a name that no port has may be a number.
pub(super) fn port(
    notes: &mut Notes<'_>,
    field: &str,
    written: &IntOrString,
    ports: &[Port],
) -> Option<ProbePort> {
    let name = match written {
        IntOrString::Int(number) => {
            return notes.number(field, Some((*number).into()), 1, 65535).map(ProbePort::Number);
        }
        IntOrString::String(name) => name,
    };
    if !is_port_name(name) {
        let message =
            format!("`{name}` is not the name of a port: at most 15 of a-z, 0-9 and -, with a letter");
        notes.fault(field, message);
        return None;
    }
    let known = ports.iter().find(|port| port.name.as_deref() == Some(name));
    Some(
        known.map_or_else(|| ProbePort::Unknown(name.clone()), |port| ProbePort::Number(port.container_port)),
    )
}

/// Source: `IsHTTPHeaderName` of `k8s.io/apimachinery/pkg/util/validation/validation.go`.
fn is_header_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use berth_core::spec::ProbeKind;

    use super::super::{read, tests::origin};
    use super::*;

    fn manifest(probes: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: web}}\nspec:\n  containers:\n  - name: main\n    image: busybox\n    \
             ports: [{{name: http, containerPort: 8080}}]\n{probes}"
        )
    }

    fn probes(text: &str) -> Probes {
        let manifests = read(&manifest(text), &origin()).unwrap();
        assert_eq!(manifests[0].unsupported, [""; 0], "{text}");
        manifests[0].pod.containers[0].probes.clone()
    }

    #[test]
    fn what_is_not_written_has_the_apis_defaults() {
        let probes = probes(
            "    livenessProbe: {httpGet: {port: http}}\n    readinessProbe: {tcpSocket: {port: 1}}\n",
        );
        let expected = Probe {
            handler: ProbeHandler::Http(HttpGet {
                tls: false,
                host: None,
                port: ProbePort::Number(8080),
                path: "/".into(),
                headers: vec![],
            }),
            initial_delay: Duration::ZERO,
            timeout: Duration::from_secs(1),
            period: Duration::from_secs(10),
            successes: 1,
            failures: 3,
            grace: None,
        };
        assert_eq!(probes.of(ProbeKind::Liveness), Some(&expected));
        let tcp = ProbeHandler::Tcp { host: None, port: ProbePort::Number(1) };
        assert_eq!(probes.of(ProbeKind::Readiness), Some(&Probe { handler: tcp, ..expected }));
        assert_eq!(probes.of(ProbeKind::Startup), None);
    }

    #[test]
    fn everything_that_can_be_written_is_taken() {
        let probes = probes(
            "    startupProbe: {exec: {command: [sh, -c, \"exit 0\"]}, initialDelaySeconds: 1, timeoutSeconds: 2, \
             periodSeconds: 3, failureThreshold: 4, terminationGracePeriodSeconds: 5}\n    readinessProbe: {grpc: {port: 9, \
             service: live}, successThreshold: 6}\n    livenessProbe: {httpGet: {port: nowhere, scheme: HTTPS, host: a.example, \
             path: \"/x?y\", httpHeaders: [{name: Host, value: b.example}]}}\n",
        );
        let seconds = Duration::from_secs;
        let startup = Probe {
            handler: ProbeHandler::Exec(["sh", "-c", "exit 0"].map(str::to_owned).to_vec()),
            initial_delay: seconds(1),
            timeout: seconds(2),
            period: seconds(3),
            successes: 1,
            failures: 4,
            grace: Some(seconds(5)),
        };
        assert_eq!(probes.startup, Some(startup));
        let readiness = probes.readiness.unwrap();
        assert_eq!(readiness.handler, ProbeHandler::Grpc { port: 9, service: "live".into() });
        assert_eq!(readiness.successes, 6);
        let get = HttpGet {
            tls: true,
            host: Some("a.example".into()),
            port: ProbePort::Unknown("nowhere".into()),
            path: "/x?y".into(),
            headers: vec![("Host".into(), "b.example".into())],
        };
        assert_eq!(probes.liveness.unwrap().handler, ProbeHandler::Http(get));
    }

    #[test]
    fn what_the_api_server_refuses_is_refused() {
        for (text, field) in [
            ("livenessProbe: {}", "livenessProbe"),
            ("livenessProbe: {tcpSocket: {port: 1}, grpc: {port: 1}}", "livenessProbe"),
            ("livenessProbe: {exec: {}}", "livenessProbe.exec.command"),
            ("livenessProbe: {tcpSocket: {port: 0}}", "livenessProbe.tcpSocket.port"),
            ("livenessProbe: {tcpSocket: {port: 65536}}", "livenessProbe.tcpSocket.port"),
            ("livenessProbe: {tcpSocket: {port: \"80\"}}", "livenessProbe.tcpSocket.port"),
            ("livenessProbe: {grpc: {port: 0}}", "livenessProbe.grpc.port"),
            ("livenessProbe: {httpGet: {port: 1, scheme: FTP}}", "livenessProbe.httpGet.scheme"),
            (
                "livenessProbe: {httpGet: {port: 1, httpHeaders: [{name: a b, value: c}]}}",
                "livenessProbe.httpGet.httpHeaders[0].name",
            ),
            ("livenessProbe: {tcpSocket: {port: 1}, periodSeconds: -1}", "livenessProbe.periodSeconds"),
            ("livenessProbe: {tcpSocket: {port: 1}, successThreshold: 2}", "livenessProbe.successThreshold"),
            ("startupProbe: {tcpSocket: {port: 1}, successThreshold: 2}", "startupProbe.successThreshold"),
            (
                "startupProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: 0}",
                "startupProbe.terminationGracePeriodSeconds",
            ),
            (
                "readinessProbe: {tcpSocket: {port: 1}, terminationGracePeriodSeconds: 5}",
                "readinessProbe.terminationGracePeriodSeconds",
            ),
        ] {
            let error = read(&manifest(&format!("    {text}\n")), &origin()).unwrap_err().to_string();
            let field = format!("spec.containers[0].{field}");
            assert!(error.contains(&field), "{text}: {error}");
        }
        let init =
            "  initContainers: [{name: first, image: busybox, livenessProbe: {tcpSocket: {port: 1}}}]\n";
        let error = read(&manifest(init), &origin()).unwrap_err().to_string();
        assert!(error.contains("spec.initContainers[0].livenessProbe"), "{error}");
    }
}
