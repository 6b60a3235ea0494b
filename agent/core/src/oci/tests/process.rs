//! What is run, where, and with which environment.

use std::{collections::BTreeMap, path::Path};

use super::Bench;
use crate::{
    derived::{downward::DownwardError, env::TooLong},
    oci::{ConfigError, ObjectValues},
    spec::{EnvSource, EnvVar, NetworkMode, ResourceField, ResourceSelector, Source, Stdin, Stdio},
};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn value(name: &str, value: &str) -> EnvVar {
    EnvVar { name: name.into(), source: EnvSource::Value(value.into()) }
}

fn field(name: &str, path: &str) -> EnvVar {
    EnvVar { name: name.into(), source: EnvSource::Field(path.into()) }
}

#[test]
fn command_and_arguments_replace_those_of_the_image() {
    // Image entry point, image command, command, arguments, what runs.
    for (entrypoint, cmd, command, args, expected) in [
        ("", "sh", "", "", Some("sh")),
        ("/ep", "a b", "", "", Some("/ep a b")),
        ("/ep", "a b", "", "c", Some("/ep c")),
        ("/ep", "a b", "run", "", Some("run")),
        ("/ep", "a b", "run", "c d", Some("run c d")),
        ("", "", "", "c", Some("c")),
        ("/ep", "", "", "", Some("/ep")),
        ("", "", "", "", None),
    ] {
        let bench = Bench::with(|bench| {
            bench.image.config.entrypoint = words(entrypoint);
            bench.image.config.cmd = words(cmd);
            bench.container.command = words(command);
            bench.container.args = words(args);
        });
        match expected {
            Some(expected) => assert_eq!(bench.process().args().clone().unwrap(), words(expected)),
            None => assert_eq!(bench.error(), ConfigError::NoCommand),
        }
    }
}

#[test]
fn an_entrypoint_of_one_empty_word_is_none() {
    let bench = Bench::with(|bench| bench.image.config.entrypoint = vec![String::new()]);
    assert_eq!(bench.process().args().clone().unwrap(), ["sh"]);
}

#[test]
fn references_in_command_and_arguments_are_expanded_but_not_the_images() {
    let bench = Bench::with(|bench| {
        bench.container.env = vec![value("NAME", "world")];
        bench.container.args = vec!["hello $(NAME)".into(), "$(OTHER)".into(), "$$(NAME)".into()];
        bench.image.config.entrypoint = vec!["$(NAME)".into()];
    });
    assert_eq!(bench.process().args().clone().unwrap(), ["$(NAME)", "hello world", "$(OTHER)", "$(NAME)"]);
}

#[test]
fn environment_is_path_hostname_image_then_pod() {
    let bench = Bench::with(|bench| {
        bench.image.config.env = vec!["PATH=/image".into(), "A=image".into(), "B=image".into()];
        bench.container.env = vec![value("B", "pod"), value("C", "$(B)-$(A)"), value("B", "again")];
    });
    assert_eq!(bench.env(), ["PATH=/image", "HOSTNAME=web-node-1", "A=image", "B=again", "C=pod-$(A)"]);
}

#[test]
fn defaults_of_the_environment() {
    assert_eq!(
        Bench::new().env(),
        ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOSTNAME=web-node-1"]
    );
    let terminal = Bench::with(|bench| bench.container.stdio = Stdio { stdin: Stdin::Open, tty: true });
    assert_eq!(terminal.env()[1], "TERM=xterm");
    assert_eq!(terminal.process().terminal(), Some(true));
    assert_eq!(Bench::new().process().terminal(), Some(false));
    let of_node = Bench::with(|bench| bench.pod.network = NetworkMode::Node);
    // As the kernel has it, not as the node is called.
    assert_eq!(of_node.env()[1], "HOSTNAME=Node-1.example");
    let files = of_node.plan().unwrap().files;
    let file = files.iter().find(|file| file.path.ends_with("/hostname")).unwrap();
    assert_eq!(file.content, "Node-1.example\n");
}

#[test]
fn an_entry_of_the_image_without_a_value_removes_the_variable() {
    let bench =
        Bench::with(|bench| bench.image.config.env = vec!["PATH".into(), "X=1".into(), "UNKNOWN".into()]);
    assert_eq!(bench.env(), ["HOSTNAME=web-node-1", "X=1"]);
}

/// Each compared with all before it takes minutes.
#[test]
fn many_variables_are_planned_at_once() {
    const MANY: usize = 200_000;
    let names = || (0..MANY).map(|number| format!("V{number}"));
    let mut bench = Bench::with(|bench| {
        bench.image.config.env = names().map(|name| format!("{name}=image")).chain(names()).collect();
        bench.image.config.env.extend(["LAST=1".into(), "V1=image".into()]);
        bench.container.env = vec![value("V7", "pod")];
    });
    let from = names().map(|name| (name, String::new())).collect();
    bench.values = Some(ObjectValues { from, ..ObjectValues::default() });
    let env = bench.env();
    assert_eq!(env.len(), MANY + 3, "PATH, HOSTNAME, LAST and all of them");
    assert_eq!(env[2..6], ["LAST=1", "V1=", "V0=", "V2="], "what was removed comes anew");
    assert_eq!(env[10], "V7=pod");
}

/// A few lines of a pod, which come to far more than a program can begin with.
#[test]
fn what_references_and_fields_come_to_has_a_bound() {
    let doubled = (1..64).map(|number| value(&format!("V{number}"), &format!("$(V{0})$(V{0})", number - 1)));
    let benches = [
        Bench::with(|bench| {
            bench.container.env = [value("V0", "xxxxxxxx")].into_iter().chain(doubled).collect();
        }),
        Bench::with(|bench| {
            bench.container.env = vec![value("A", &"x".repeat(1 << 10))];
            bench.container.args = vec!["$(A)".repeat(250_000)];
        }),
        Bench::with(|bench| {
            bench.pod.annotations.insert("a".into(), "x".repeat(256 << 10));
            bench.container.env = vec![field("A", "metadata.annotations"); 20_000];
        }),
    ];
    for bench in benches {
        let error = bench.error();
        assert_eq!(error, ConfigError::TooLong(TooLong));
        assert_eq!(error.reason(), "CreateContainerConfigError");
    }
}

#[test]
fn fields_and_resources_are_values() {
    let bench = Bench::with(|bench| {
        bench.container.resources.limits.cpu_milli = Some(1500);
        bench.container.env = vec![
            field("POD", "metadata.name"),
            field("IP", "status.podIP"),
            EnvVar {
                name: "CPUS".into(),
                source: EnvSource::Resource(ResourceSelector {
                    container: None,
                    field: ResourceField::LimitsCpu,
                    divisor: 1000,
                }),
            },
            value("ALL", "$(POD) $(IP) $(CPUS)"),
        ];
    });
    assert_eq!(bench.env()[2..], ["POD=web-node-1", "IP=10.1.2.3", "CPUS=2", "ALL=web-node-1 10.1.2.3 2"]);
    let unknown = Bench::with(|bench| bench.container.env = vec![field("X", "spec.secret")]);
    let error = unknown.error();
    assert_eq!(error, ConfigError::Downward(DownwardError::UnsupportedField { path: "spec.secret".into() }));
    assert_eq!(error.reason(), "CreateContainerConfigError");
}

#[test]
fn a_pod_in_the_nodes_network_has_the_nodes_addresses() {
    let bench = Bench::with(|bench| {
        bench.pod.network = NetworkMode::Node;
        bench.network = None;
        bench.container.env = vec![field("IPS", "status.podIPs")];
    });
    assert_eq!(bench.env()[2], "IPS=192.0.2.10");
}

#[test]
fn working_directory_is_the_containers_then_the_images_then_the_root() {
    for (container, image, expected) in [
        (None, "", "/"),
        (None, "/image", "/image"),
        (Some("/own"), "/image", "/own"),
        (Some(""), "/image", "/image"),
        (Some("/a/../b"), "", "/a/../b"),
    ] {
        let bench = Bench::with(|bench| {
            bench.container.working_dir = container.map(str::to_owned);
            bench.image.config.working_dir = image.to_owned();
        });
        assert_eq!(bench.process().cwd(), Path::new(expected));
    }
}

#[test]
fn cve_2024_21626_working_directory_is_no_descriptor() {
    for path in [
        "/proc/self/fd/7",
        "/proc/self/fd/7/../../../..",
        "/proc/self/fd/",
        "//proc/./self/fd/8",
        "/x/../proc/self/fd/8/x",
        "/proc/thread-self/fd/9",
        "/proc/1/fd/9",
        "/proc/self/task/1/fd/3",
        "/proc/self/fdinfo",
        "/proc/1/cwd",
        "/proc/1/root/etc",
        "/dev/fd/8",
        "relative",
        "./x",
        "/a\0b",
    ] {
        let of_pod = Bench::with(|bench| bench.container.working_dir = Some(path.into()));
        let of_image = Bench::with(|bench| bench.image.config.working_dir = path.into());
        for bench in [of_pod, of_image] {
            assert_eq!(bench.error(), ConfigError::WorkingDir { path: path.into() }, "{path:?}");
        }
    }
    for path in ["/proc", "/proc/self", "/dev/shm", "/srv/fd", "/proc/sys/fs"] {
        let bench = Bench::with(|bench| bench.container.working_dir = Some(path.into()));
        assert_eq!(bench.process().cwd(), Path::new(path));
    }
}

#[test]
fn cve_2022_4318_cve_2026_15809_control_characters_in_home_reach_only_the_environment() {
    let home = "/root\nevil::0:0::/:/bin/sh\r\u{b}evil\u{85}evil\u{2028}evil\n\u{1b}[2J";
    let bench = Bench::with(|bench| bench.container.env = vec![value("HOME", home)]);
    let plan = bench.plan().unwrap();
    assert!(plan.files.iter().all(|file| !file.content.contains("evil")));
    assert!(plan.files.iter().all(|file| !file.path.contains("passwd")));
    assert!(plan.labels.values().all(|label| !label.contains("evil")));
    let annotations = plan.spec.annotations().clone().unwrap();
    assert!(annotations.values().all(|annotation| !annotation.contains("evil")));
    let env = plan.spec.process().clone().unwrap().env().clone().unwrap();
    assert_eq!(env.iter().filter(|entry| entry.contains("evil")).count(), 1);
    assert_eq!(env[2], format!("HOME={home}"));
}

#[test]
fn a_nul_or_a_nameless_variable_is_refused() {
    for bench in [
        Bench::with(|bench| bench.container.env = vec![value("A", "b\0c")]),
        Bench::with(|bench| bench.container.env = vec![value("A\0", "b")]),
        Bench::with(|bench| bench.container.env = vec![value("", "b")]),
        Bench::with(|bench| bench.container.env = vec![value("A=B", "b")]),
        Bench::with(|bench| bench.container.args = vec!["a\0b".into()]),
        Bench::with(|bench| bench.image.config.cmd = vec!["a\0b".into()]),
        Bench::with(|bench| bench.image.config.env = vec!["A=b\0c".into()]),
        Bench::with(|bench| bench.image.config.env = vec!["=b".into()]),
    ] {
        assert_eq!(bench.error().reason(), "CreateContainerError");
    }
}

#[test]
fn new_privileges_are_off_only_when_escalation_is_refused() {
    for (escalation, expected) in [(None, false), (Some(true), false), (Some(false), true)] {
        let bench = Bench::with(|bench| bench.container.security.allow_privilege_escalation = escalation);
        assert_eq!(bench.process().no_new_privileges(), Some(expected));
    }
}

#[test]
fn objects_come_first_services_last_and_references_see_both() {
    use crate::spec::{ObjectKeyRef, ObjectKind};

    let key = || {
        let (name, key) = ("s".to_owned(), "k".to_owned());
        EnvSource::Key(ObjectKeyRef { kind: ObjectKind::Secret, name, key, optional: true })
    };
    let mut bench = Bench::with(|bench| {
        bench.pod.source = Source::Api;
        bench.container.env = [
            ("SECRET", key()),
            ("MISSING", key()),
            ("USES", EnvSource::Value("$(SECRET) $(FROM) $(WEB_HOST) $(MISSING) $(LATER)".into())),
            ("WEB_HOST", EnvSource::Value("own".into())),
            ("FROM", EnvSource::Value("over $(FROM)".into())),
        ]
        .map(|(name, source)| EnvVar { name: name.into(), source })
        .into();
        bench.container.args = vec!["$(SECRET)".into(), "$(WEB_PORT)".into()];
    });
    let own = |bench: &Bench| {
        let all = bench.env();
        all.into_iter()
            .filter(|one| !["PATH", "HOSTNAME"].iter().any(|name| one.starts_with(name)))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        own(&bench),
        ["USES=$(SECRET) $(FROM) $(WEB_HOST) $(MISSING) $(LATER)", "WEB_HOST=own", "FROM=over $(FROM)"],
        "before the values are known"
    );
    let text = |text: &str| text.to_owned();
    bench.values = Some(ObjectValues {
        from: vec![(text("FROM"), text("1")), (text("FROM"), text("2")), (text("OTHER"), text("3"))],
        keys: BTreeMap::from([(0, text("hush"))]),
        services: BTreeMap::from([(text("WEB_HOST"), text("10.0.0.1")), (text("WEB_PORT"), text("80"))]),
    });
    assert_eq!(
        own(&bench),
        [
            "FROM=over 2",
            "OTHER=3",
            "SECRET=hush",
            "USES=hush 2 10.0.0.1 $(MISSING) $(LATER)",
            "WEB_HOST=own",
            "WEB_PORT=80"
        ]
    );
    assert_eq!(bench.process().args().clone().unwrap(), ["hush", "80"]);
    for (name, value) in [("A=B", "x"), ("", "x"), ("A\0", "x"), ("A", "hush\0")] {
        bench.values =
            Some(ObjectValues { from: vec![(text(name), text(value))], ..ObjectValues::default() });
        let error = bench.error().to_string();
        assert!(!error.contains("hush"), "{error}");
    }
}
