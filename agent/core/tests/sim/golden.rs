//! Scripted lives: `tests/golden/*.txt` hold commands (`> …`) and what the node did after each. `UPDATE=1` rewrites them.

use std::{collections::BTreeMap, fmt::Write, path::Path, sync::Arc, time::Duration};

use berth_core::{
    effect::Effect,
    event::Event,
    failure::FailureKind,
    id::{ContainerName, ImageRef, PodUid, SandboxId, VolumeName},
    pod::port::{hook::HookAnswer, look::Finding, probe::ProbeAnswer},
    spec::{
        Container, Hook, HookMoment, HttpGet, ImagePullPolicy, NetworkMode, Pod, Probe, ProbeKind, ProbePort,
        QosClass, RestartPolicy, Source,
    },
};

use crate::{
    pods,
    run::Run,
    tell,
    world::{self, Disk},
};

#[test]
#[expect(clippy::disallowed_methods, reason = "the scripts are files")]
fn golden_lives() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut scripts: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    scripts.sort();
    assert!(!scripts.is_empty(), "no scripts in {}", folder.display());
    let is_update = std::env::var("UPDATE").is_ok();
    let mut wrong = Vec::new();
    for path in scripts {
        let known = std::fs::read_to_string(&path).unwrap();
        let told = Script::default().play(&known, &path);
        if told == known {
            continue;
        }
        if is_update {
            std::fs::write(&path, told).unwrap();
        } else {
            wrong.push(format!("{}:\n{}", path.display(), difference(&known, &told)));
        }
    }
    assert!(wrong.is_empty(), "{}\n(UPDATE=1 rewrites)", wrong.join("\n"));
}

fn difference(known: &str, told: &str) -> String {
    let line = known.lines().zip(told.lines()).position(|(left, right)| left != right);
    let line = line.unwrap_or_else(|| known.lines().count().min(told.lines().count()));
    let show = |text: &str| text.lines().nth(line).unwrap_or("(end)").to_owned();
    format!("  line {}\n  - {}\n  + {}", line + 1, show(known), show(told))
}

#[derive(Default)]
struct Script {
    run: Option<Run>,
    failures: Vec<(String, FailureKind, String)>,
    held: Vec<String>,
    /// Effects that are performed and whose outcome nobody hears.
    unanswered: Vec<String>,
    names: BTreeMap<String, String>,
    /// Whether looks are told of: they come every minute, and only matter where they find something.
    are_looks_told: bool,
    /// The same of probes.
    are_probes_told: bool,
}

impl Script {
    /// Plays the commands of a script; the script with what the node does now.
    fn play(mut self, text: &str, path: &Path) -> String {
        let mut out = String::new();
        for line in text.lines() {
            if let Some(command) = line.strip_prefix("> ") {
                writeln!(out, "{line}").unwrap();
                self.command(command);
                self.tell(&mut out);
            } else if line.starts_with('#') || line.is_empty() {
                writeln!(out, "{line}").unwrap();
            }
        }
        let violations = &self.run().world.violations;
        assert!(violations.is_empty(), "{}: {violations:#?}", path.display());
        out
    }

    fn run(&mut self) -> &mut Run {
        self.run.get_or_insert_with(Run::new)
    }

    /// Adds an ephemeral container to a pod.
    fn debug(&mut self, pod: &str, name: &str, target: Option<&str>) {
        let run = self.run();
        let mut changed = Pod::clone(&run.spec(pod).expect("a pod"));
        pods::debug(&mut changed, name, target);
        run.want(changed);
    }

    fn command(&mut self, line: &str) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let rest = |from: usize| words[from..].join(" ");
        match words.as_slice() {
            ["begin"] => {
                self.run();
            }
            ["pod", name, parts @ ..] => {
                let pod = parse_pod(name, parts);
                self.names.insert(pod.uid.to_string(), (*name).to_owned());
                self.run().want(pod);
            }
            ["replace", name, parts @ ..] => {
                let pod = parse_pod(name, parts);
                self.names.insert(pod.uid.to_string(), format!("{name}'"));
                self.run().replace(pod);
            }
            ["debug", pod, name, target @ ..] => self.debug(pod, name, target.first().copied()),
            ["remove", name] => self.run().unwant(name),
            ["restart"] => self.run().restart(None),
            ["restart", "silent", pod] => {
                let uid = PodUid::new(format!("uid-{pod}"));
                let run = self.run();
                let id = run.world.sandboxes.iter().find(|(_, one)| one.pod == uid).map(|(id, _)| id.clone());
                run.restart(id.as_ref());
            }
            ["exit", container, code] => self.exit(container, code.parse().unwrap()),
            ["deaf", name] => {
                self.run().world.deaf.insert(ContainerName::new(*name));
            }
            ["lose", pod] => self.lose(pod),
            ["looks"] => self.are_looks_told = true,
            ["behind", pod, what] => self.change_behind(pod, what),
            ["silence", pod] => {
                let id = self.sandbox_of(pod);
                self.run().world.fall_silent(&id);
            }
            ["speak", pod] => {
                let id = self.sandbox_of(pod);
                self.run().world.speak(&id);
            }
            ["publish-image", image] => {
                self.run().world.registry.insert(ImageRef::new(*image));
            }
            ["disk", "full"] => self.run().world.disk = Disk::Full,
            ["disk", "unsure"] => self.run().world.disk = Disk::Unsure,
            ["disk", "works"] => self.run().world.disk = Disk::Works,
            ["network", "ready"] => self.run().handle(Event::NetworkReady(Ok(()))),
            ["network", ..] => {
                let why = rest(1);
                self.run().handle(Event::NetworkReady(Err(why)));
            }
            ["down"] => self.run().set_runtime(true),
            ["up"] => self.run().set_runtime(false),
            ["fail", effect, kind, ..] => {
                self.failures.push(((*effect).to_owned(), parse_kind(kind), rest(3)));
            }
            ["lose-answer", effect] => self.unanswered.push((*effect).to_owned()),
            ["hold", effect] => self.held.push((*effect).to_owned()),
            ["release", effect] => self.held.retain(|held| held != effect),
            ["advance", seconds] => {
                let length = Duration::from_secs_f64(seconds.parse().unwrap());
                self.settle();
                let mut run = self.run.take().unwrap();
                run.advance(length, |run| self.settle_run(run));
                self.run = Some(run);
            }
            _ => self.probe_command(&words),
        }
        self.settle();
    }

    /// The commands about probes and hooks.
    fn probe_command(&mut self, words: &[&str]) {
        match words {
            ["probes"] => self.are_probes_told = true,
            ["quiet-probes"] => self.are_probes_told = false,
            ["sick", container, kind, how, text @ ..] => {
                let text = text.join(" ");
                let answer = match *how {
                    "fails" => ProbeAnswer::Failure(text),
                    "warns" => ProbeAnswer::Warning(text),
                    "errs" => ProbeAnswer::Errored { state: "unknown", message: text },
                    other => panic!("{other:?}"),
                };
                self.run().world.sick.insert((ContainerName::new(*container), parse_probe(kind)), answer);
            }
            ["well", container, kind] => {
                self.run().world.sick.remove(&(ContainerName::new(*container), parse_probe(kind)));
            }
            ["hook", container, moment, "well"] => {
                self.run().world.hooks.remove(&(ContainerName::new(*container), parse_moment(moment)));
            }
            ["hook", container, moment, "http", server] => {
                let answer = HookAnswer::WithoutTls((*server).to_owned());
                self.run().world.hooks.insert((ContainerName::new(*container), parse_moment(moment)), answer);
            }
            ["hook", container, moment, error @ ..] => {
                let answer = HookAnswer::Failed { error: error.join(" "), output: "output".into() };
                self.run().world.hooks.insert((ContainerName::new(*container), parse_moment(moment)), answer);
            }
            _ => panic!("unknown command {words:?}"),
        }
    }

    fn exit(&mut self, container: &str, code: u32) {
        let run = self.run();
        let (pod, name) = container.split_once('/').unwrap();
        let id = run.world.running(&PodUid::new(format!("uid-{pod}")), name).expect("a running container");
        let now = run.now;
        run.world.exit(&id, code, now);
    }

    fn change_behind(&mut self, pod: &str, what: &str) {
        let uid = PodUid::new(format!("uid-{pod}"));
        assert!(self.run().world.change_behind(&uid, parse_finding(what)), "{what} is not there");
    }

    fn sandbox_of(&mut self, pod: &str) -> SandboxId {
        let uid = PodUid::new(format!("uid-{pod}"));
        let mut all = self.run().world.sandboxes.iter();
        all.find(|(_, one)| one.pod == uid).map(|(id, _)| id.clone()).expect("a sandbox")
    }

    fn lose(&mut self, pod: &str) {
        let id = self.sandbox_of(pod);
        let run = self.run();
        let now = run.now;
        run.world.lose(&id, now);
    }

    fn settle(&mut self) {
        let Some(mut run) = self.run.take() else { return };
        self.settle_run(&mut run);
        self.run = Some(run);
    }

    /// Performs what is asked for, in order, until nothing follows.
    fn settle_run(&mut self, run: &mut Run) {
        for _ in 0..1000 {
            let is_held = |effect: &Effect| self.held.iter().any(|held| held == tell::kind_of(effect));
            let next = run.open.iter().position(|effect| !is_held(effect));
            if let Some(at) = next {
                let kind = tell::kind_of(&run.open[at]);
                let failure = self.failures.iter().position(|(effect, ..)| *effect == kind);
                let unanswered = self.unanswered.iter().position(|effect| *effect == kind);
                if let Some(failure) = failure {
                    let (_, kind, message) = self.failures.remove(failure);
                    let effect = run.open.remove(at).unwrap();
                    run.finished.push_back((effect.op(), Err(world::failure(kind, &message))));
                } else {
                    run.perform(at);
                }
                if let Some(unanswered) = unanswered {
                    self.unanswered.remove(unanswered);
                    let outcome = run.finished.front_mut().map(|(_, outcome)| outcome).expect("an outcome");
                    *outcome = Err(world::failure(FailureKind::Unknown, "no answer within 240 s"));
                }
                run.deliver(0);
            } else if run.world.has_news() {
                run.report();
            } else if !run.probe() && !run.look() {
                return;
            }
        }
        panic!("it never comes to rest: {:#?}", run.told.iter().rev().take(20).collect::<Vec<_>>());
    }

    fn tell(&mut self, out: &mut String) {
        let told = std::mem::take(&mut self.run().told);
        for effect in told {
            let is_told = match tell::kind_of(&effect) {
                "look" => self.are_looks_told,
                "probe" => self.are_probes_told,
                _ => true,
            };
            if !is_told {
                continue;
            }
            writeln!(out, "  {}", tell::effect(&effect, &self.names)).unwrap();
        }
    }
}

fn parse_finding(what: &str) -> Finding {
    match what {
        "netns" => Finding::Netns,
        "cgroup" => Finding::Cgroup,
        "dirs" => Finding::Dirs,
        "files" => Finding::Files,
        volume => Finding::Volume(VolumeName::new(volume)),
    }
}

fn parse_probe(kind: &str) -> ProbeKind {
    match kind {
        "startup" => ProbeKind::Startup,
        "readiness" => ProbeKind::Readiness,
        "liveness" => ProbeKind::Liveness,
        other => panic!("unknown probe {other:?}"),
    }
}

fn parse_moment(moment: &str) -> HookMoment {
    match moment {
        "post-start" => HookMoment::PostStart,
        "pre-stop" => HookMoment::PreStop,
        other => panic!("unknown moment {other:?}"),
    }
}

/// `web:exec`, `web:http`, `web:tcp` or `web:sleep:seconds`.
fn add_hook(pod: &mut Pod, moment: HookMoment, value: &str) {
    let (container, what) = value.split_once(':').unwrap();
    let hook = match what.split_once(':').unwrap_or((what, "")) {
        ("exec", _) => Hook::Exec(vec!["do".into(), "it".into()]),
        ("http", _) => Hook::Http(HttpGet {
            tls: false,
            host: None,
            port: ProbePort::Number(80),
            path: "/hook".into(),
            headers: Vec::new(),
        }),
        ("tcp", _) => Hook::Tcp,
        ("sleep", seconds) => Hook::Sleep(Duration::from_secs(seconds.parse().unwrap())),
        (other, _) => panic!("unknown hook {other:?}"),
    };
    let lifecycle = &mut pods::edit(pod, container).lifecycle;
    match moment {
        HookMoment::PostStart => lifecycle.post_start = Some(hook),
        HookMoment::PreStop => lifecycle.pre_stop = Some(hook),
    }
}

/// `web:period:successes:failures:delay` and perhaps `:grace`, all in seconds.
fn add_probe(pod: &mut Pod, kind: &str, value: &str) {
    let (container, numbers) = value.split_once(':').unwrap();
    let numbers: Vec<u64> = numbers.split(':').map(|number| number.parse().unwrap()).collect();
    let seconds = |at: usize| Duration::from_secs(numbers[at]);
    let probe = Probe {
        period: seconds(0),
        successes: u32::try_from(numbers[1]).unwrap(),
        failures: u32::try_from(numbers[2]).unwrap(),
        initial_delay: seconds(3),
        grace: (numbers.len() > 4).then(|| seconds(4)),
        ..pods::probe()
    };
    let probes = &mut pods::edit(pod, container).probes;
    let slot = match parse_probe(kind) {
        ProbeKind::Startup => &mut probes.startup,
        ProbeKind::Readiness => &mut probes.readiness,
        ProbeKind::Liveness => &mut probes.liveness,
    };
    *slot = Some(probe);
}

fn parse_kind(kind: &str) -> FailureKind {
    match kind {
        "transient" => FailureKind::Transient,
        "unknown" => FailureKind::Unknown,
        "down" => FailureKind::RuntimeDown,
        "config" => FailureKind::Config,
        "image-name" => FailureKind::InvalidImageName,
        "image-pull" => FailureKind::ImagePull,
        "layers-gone" => FailureKind::LayersGone,
        "start-failed" => FailureKind::StartFailed,
        "sandbox-gone" => FailureKind::SandboxGone,
        "silent" => FailureKind::Silent,
        other => panic!("unknown kind {other:?}"),
    }
}

/// `pod web init-a web policy=Never image=x:1 volume=data grace=5 deadline=60 hostnet hash=web:2 never-pull always-pull`
fn parse_pod(name: &str, parts: &[&str]) -> Pod {
    let containers: Vec<&str> =
        parts.iter().copied().filter(|part| !part.contains('=') && !is_flag(part)).collect();
    let mut pod = pods::pod(name, &containers);
    let each = |pod: &mut Pod, change: &dyn Fn(&mut Container)| {
        let all = pod.init_containers.iter_mut().chain(&mut pod.containers);
        all.for_each(|container| change(Arc::make_mut(container)));
    };
    for part in parts.iter().filter(|part| part.contains('=') || is_flag(part)) {
        let (key, value) = part.split_once('=').unwrap_or((part, ""));
        match key {
            "policy" => {
                pod.restart_policy = match value {
                    "Always" => RestartPolicy::Always,
                    "OnFailure" => RestartPolicy::OnFailure,
                    "Never" => RestartPolicy::Never,
                    other => panic!("{other:?}"),
                }
            }
            "image" => each(&mut pod, &|one| one.image = ImageRef::new(value)),
            "volume" => {
                pod.volumes.push(pods::empty_dir(value));
                let first = pod.containers[0].name.to_string();
                pods::mount_all(&mut pod, &first);
            }
            "image-volume" => add_image_volume(&mut pod, value),
            "grace" => pod.grace = Duration::from_secs(value.parse().unwrap()),
            "deadline" => pod.active_deadline = Some(Duration::from_secs(value.parse().unwrap())),
            "startup" | "readiness" | "liveness" => add_probe(&mut pod, key, value),
            "post-start" | "pre-stop" => add_hook(&mut pod, parse_moment(key), value),
            "stop-signal" => {
                let (container, signal) = value.split_once(':').unwrap();
                pods::edit(&mut pod, container).lifecycle.stop_signal = Some(signal.to_owned());
            }
            "restart-all" => {
                let (container, code) = value.split_once(':').unwrap();
                pods::restart_all_on(&mut pod, container, code.parse().unwrap());
            }
            "hostnet" => pod.network = NetworkMode::Node,
            "uid" => pod.uid = PodUid::new(value),
            "source" => pod.source = if value == "http" { Source::Http } else { Source::File },
            "hash" => {
                let (container, hash) = value.split_once(':').unwrap();
                pods::edit(&mut pod, container).hash = hash.parse().unwrap();
            }
            "limits" => add_limits(&mut pod, value),
            "resize-restarts" => pods::edit(&mut pod, value).resize_policy.memory_restarts = true,
            "never-pull" => each(&mut pod, &|one| one.pull_policy = ImagePullPolicy::Never),
            "always-pull" => each(&mut pod, &|one| one.pull_policy = ImagePullPolicy::Always),
            other => panic!("unknown part {other:?}"),
        }
    }
    pod
}

/// `web:assets:data:1`: the container, the volume and the image; `-` for no container.
fn add_image_volume(pod: &mut Pod, value: &str) {
    let mut parts = value.splitn(3, ':');
    let (Some(container), Some(name), Some(image)) = (parts.next(), parts.next(), parts.next()) else {
        panic!("unknown volume {value:?}")
    };
    pods::add_image_volume(pod, (container != "-").then_some(container), name, image);
}

/// `web:milli:MiB`, and little is requested.
fn add_limits(pod: &mut Pod, value: &str) {
    let parts: Vec<&str> = value.split(':').collect();
    let [container, milli, mib] = parts.as_slice() else { panic!("unknown limits {value:?}") };
    let limits = (milli.parse().unwrap(), mib.parse::<u64>().unwrap() << 20);
    pods::edit(pod, container).resources = pods::resources((10, 1 << 20), limits);
    pod.qos = QosClass::Burstable;
}

fn is_flag(part: &str) -> bool {
    ["hostnet", "never-pull", "always-pull"].contains(&part)
}
