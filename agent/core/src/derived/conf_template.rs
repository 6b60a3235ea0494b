//! The network configuration that containerd's CRI makes of `cni.conf_template`, once the node has ranges of addresses for pods.
//!
//! Source: containerd, `internal/cri/server/update_runtime_config.go`. A template is one of Go's `text/template`; of that language what such
//! templates are written with is known: fields, variables, `range`, `if`, `else`, comments and the trimming of blanks.

use std::{collections::BTreeMap, net::IpAddr};

use thiserror::Error;

/// How many of `range` and `if` may be within each other.
const DEPTH_MAX: usize = 16;

/// Why a template cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// A `{{` without its end.
    #[error("an action has no end: `{0}`")]
    Open(String),
    /// Something of the language that is not known here.
    #[error(
        "`{{{{{0}}}}}` is not understood: use .PodCIDR, .PodCIDRRanges, .Routes, variables, range, if, else and end"
    )]
    Unknown(String),
    /// An `end` or `else` too many, or too few.
    #[error("`range`, `if`, `else` and `end` do not match")]
    Unbalanced,
    /// More of them within each other than anybody writes.
    #[error("more than {DEPTH_MAX} of `range` and `if` are within each other")]
    Deep,
    /// What the node has is no range of addresses.
    #[error("`{0}` is not a range of addresses")]
    Cidr(String),
}

/// What an expression stands for.
#[derive(Debug, Clone, PartialEq)]
enum Value {
    Text(String),
    List(Vec<String>),
    Number(usize),
}

impl Value {
    fn is_true(&self) -> bool {
        match self {
            Self::Text(text) => !text.is_empty(),
            Self::List(list) => !list.is_empty(),
            Self::Number(number) => *number != 0,
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::List(list) => format!("[{}]", list.join(" ")),
            Self::Number(number) => number.to_string(),
        }
    }
}

/// Writes the configuration. `cidrs` are the node's ranges, of which there is at least one.
///
/// # Errors
/// When the template or a range cannot be understood.
pub fn render(template: &str, cidrs: &[String]) -> Result<String, TemplateError> {
    let fields = BTreeMap::from([
        (".PodCIDR".to_owned(), Value::Text(cidrs.first().cloned().unwrap_or_default())),
        (".PodCIDRRanges".to_owned(), Value::List(cidrs.to_vec())),
        (".Routes".to_owned(), Value::List(routes(cidrs)?)),
    ]);
    let parts = parts(template)?;
    let mut parts = parts.as_slice();
    let nodes = block(&mut parts, 0)?;
    if !parts.is_empty() {
        return Err(TemplateError::Unbalanced);
    }
    let mut out = String::new();
    write(&nodes, &fields, &mut out)?;
    Ok(out)
}

/// The default route of each family that there is a range of (`getRoutes`).
fn routes(cidrs: &[String]) -> Result<Vec<String>, TemplateError> {
    let mut routes = [None, None];
    for cidr in cidrs {
        let address = cidr.split_once('/').and_then(|(address, _)| address.parse::<IpAddr>().ok());
        match address {
            Some(IpAddr::V4(_)) => routes[0] = Some("0.0.0.0/0".to_owned()),
            Some(IpAddr::V6(_)) => routes[1] = Some("::/0".to_owned()),
            None => return Err(TemplateError::Cidr(cidr.clone())),
        }
    }
    Ok(routes.into_iter().flatten().collect())
}

/// A text, or what is between braces.
#[derive(Debug, PartialEq)]
enum Part {
    Text(String),
    Action(String),
}

fn parts(template: &str) -> Result<Vec<Part>, TemplateError> {
    let mut parts = Vec::new();
    let (mut rest, mut trims) = (template, false);
    while let Some((text, after)) = rest.split_once("{{") {
        let Some((action, after)) = after.split_once("}}") else {
            return Err(TemplateError::Open(after.lines().next().unwrap_or_default().to_owned()));
        };
        let text = if trims { text.trim_start() } else { text };
        let opens = action.strip_prefix("- ");
        parts.push(Part::Text(if opens.is_some() { text.trim_end() } else { text }.to_owned()));
        let action = opens.unwrap_or(action);
        let closes = action.strip_suffix(" -");
        parts.push(Part::Action(closes.unwrap_or(action).trim().to_owned()));
        (rest, trims) = (after, closes.is_some());
    }
    parts.push(Part::Text(if trims { rest.trim_start() } else { rest }.to_owned()));
    Ok(parts)
}

#[derive(Debug)]
enum Node {
    Text(String),
    Print(String),
    Range { names: Vec<String>, of: String, body: Vec<Node>, otherwise: Vec<Node> },
    If { of: String, body: Vec<Node>, otherwise: Vec<Node> },
}

/// Reads up to an `end` or `else` that is not its own, which stays.
fn block(parts: &mut &[Part], depth: usize) -> Result<Vec<Node>, TemplateError> {
    if depth > DEPTH_MAX {
        return Err(TemplateError::Deep);
    }
    let mut nodes = Vec::new();
    while let [first, rest @ ..] = *parts {
        let action = match first {
            Part::Action(action) if action == "end" || action == "else" => break,
            Part::Text(text) => {
                nodes.push(Node::Text(text.clone()));
                *parts = rest;
                continue;
            }
            Part::Action(action) => action,
        };
        *parts = rest;
        if action.starts_with("/*") && action.ends_with("*/") {
            continue;
        }
        let (word, of) = action.split_once(char::is_whitespace).unwrap_or((action, ""));
        let of = of.trim();
        nodes.push(match word {
            "range" => {
                let (names, of) = of.split_once(":=").unwrap_or(("", of));
                let names = names.split(',').map(|name| name.trim().to_owned());
                let names = names.filter(|name| !name.is_empty()).collect();
                let (body, otherwise) = branches(parts, depth + 1)?;
                Node::Range { names, of: of.trim().to_owned(), body, otherwise }
            }
            "if" => {
                let (body, otherwise) = branches(parts, depth + 1)?;
                Node::If { of: of.to_owned(), body, otherwise }
            }
            _ => Node::Print(action.clone()),
        });
    }
    Ok(nodes)
}

fn branches(parts: &mut &[Part], depth: usize) -> Result<(Vec<Node>, Vec<Node>), TemplateError> {
    let body = block(parts, depth)?;
    let mut otherwise = Vec::new();
    if let [Part::Action(action), rest @ ..] = *parts
        && action == "else"
    {
        *parts = rest;
        otherwise = block(parts, depth)?;
    }
    match *parts {
        [Part::Action(action), rest @ ..] if action == "end" => {
            *parts = rest;
            Ok((body, otherwise))
        }
        _ => Err(TemplateError::Unbalanced),
    }
}

fn write(nodes: &[Node], known: &BTreeMap<String, Value>, out: &mut String) -> Result<(), TemplateError> {
    let value = |name: &str| known.get(name).ok_or_else(|| TemplateError::Unknown(name.to_owned()));
    for node in nodes {
        match node {
            Node::Text(text) => out.push_str(text),
            Node::Print(name) => out.push_str(&value(name)?.text()),
            Node::If { of, body, otherwise } => {
                write(if value(of)?.is_true() { body } else { otherwise }, known, out)?;
            }
            Node::Range { names, of, body, otherwise } => {
                let Value::List(list) = value(of)? else { return Err(TemplateError::Unknown(of.clone())) };
                if list.is_empty() {
                    write(otherwise, known, out)?;
                }
                for (index, one) in list.iter().enumerate() {
                    let mut known = known.clone();
                    known.insert(".".to_owned(), Value::Text(one.clone()));
                    match names.as_slice() {
                        [] => {}
                        [element] => drop(known.insert(element.clone(), Value::Text(one.clone()))),
                        [number, element] => {
                            known.insert(number.clone(), Value::Number(index));
                            known.insert(element.clone(), Value::Text(one.clone()));
                        }
                        _ => return Err(TemplateError::Unknown(format!("range {}", names.join(", ")))),
                    }
                    write(body, &known, out)?;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cidrs(all: &[&str]) -> Vec<String> {
        all.iter().map(|one| (*one).to_owned()).collect()
    }

    #[test]
    fn templates_as_they_are_written_for_containerd() {
        let ranges =
            r#"[{{range $i, $range := .PodCIDRRanges}}{{if $i}}, {{end}}[{"subnet": "{{$range}}"}]{{end}}]"#;
        let routes = r#"[{{range $i, $route := .Routes}}{{if $i}}, {{end}}{"dst": "{{$route}}"}{{end}}]"#;
        let (one, both) = (cidrs(&["10.1.0.0/24"]), cidrs(&["10.1.0.0/24", "2001:db8::/64"]));
        for (template, cidrs, expected) in [
            (r#"{"subnet": "{{.PodCIDR}}"}"#, &one, r#"{"subnet": "10.1.0.0/24"}"#),
            (r#""{{ .PodCIDR }}""#, &both, r#""10.1.0.0/24""#),
            (ranges, &one, r#"[[{"subnet": "10.1.0.0/24"}]]"#),
            (ranges, &both, r#"[[{"subnet": "10.1.0.0/24"}], [{"subnet": "2001:db8::/64"}]]"#),
            (routes, &both, r#"[{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]"#),
            ("a{{range .Routes}}<{{.}}>{{else}}none{{end}}b", &one, "a<0.0.0.0/0>b"),
            ("a {{- /* a remark */ -}}  b {{- if .PodCIDR }} c{{else}} d{{end}}", &one, "ab c"),
            ("{{range $one := .PodCIDRRanges}}{{$one}};{{end}}", &both, "10.1.0.0/24;2001:db8::/64;"),
            ("no action }}", &one, "no action }}"),
        ] {
            assert_eq!(render(template, cidrs).as_deref(), Ok(expected), "{template}");
        }
    }

    #[test]
    fn what_is_not_understood_is_said() {
        let one = cidrs(&["10.1.0.0/24"]);
        for (template, why) in [
            ("{{.PodCidr}}", TemplateError::Unknown(".PodCidr".to_owned())),
            ("{{printf \"%s\" .PodCIDR}}", TemplateError::Unknown("printf \"%s\" .PodCIDR".to_owned())),
            ("a {{.PodCIDR", TemplateError::Open(".PodCIDR".to_owned())),
            ("{{if .PodCIDR}}a", TemplateError::Unbalanced),
            ("a{{end}}", TemplateError::Unbalanced),
            ("{{range .PodCIDR}}{{end}}", TemplateError::Unknown(".PodCIDR".to_owned())),
        ] {
            assert_eq!(render(template, &one), Err(why), "{template}");
        }
        let deep = "{{if .PodCIDR}}".repeat(10_000);
        assert_eq!(render(&deep, &one), Err(TemplateError::Deep));
        assert_eq!(render("", &cidrs(&["all"])), Err(TemplateError::Cidr("all".to_owned())));
    }
}
