package config

import (
	"fmt"
	"strings"
)

// WriteReference returns docs/configuration.md.
func WriteReference() []byte {
	var b strings.Builder
	b.WriteString(referenceIntro)
	for _, f := range Table() {
		if f.Depth == 0 && f.Section {
			fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n", f.Path, f.Desc)
			continue
		}
		if f.Depth == 0 {
			fmt.Fprintf(&b, "\n## %s\n\n%s Type: %s. Default: `%s`.%s\n", f.Path, f.Desc, f.Type, f.Default, f.limits())
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s%s |\n", f.Path, f.Type, code(f.Default), strings.ReplaceAll(f.Desc, "|", "\\|"), f.limits())
	}
	b.WriteString(referenceTolerances())
	return []byte(b.String())
}

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

// limits describes what a value may be.
func (f Field) limits() string {
	var parts []string
	if f.Enum != nil {
		parts = append(parts, "One of `"+strings.Join(f.Enum, "`, `")+"`.")
	}
	if f.Keys != nil {
		parts = append(parts, "Keys: `"+strings.Join(f.Keys, "`, `")+"`.")
	}
	switch {
	case f.Min != nil && f.Max != nil:
		parts = append(parts, fmt.Sprintf("%s to %s.", plainNumber(*f.Min), plainNumber(*f.Max)))
	case f.Min != nil:
		parts = append(parts, fmt.Sprintf("At least %s.", plainNumber(*f.Min)))
	case f.Max != nil:
		parts = append(parts, fmt.Sprintf("At most %s.", plainNumber(*f.Max)))
	}
	if f.Unique {
		parts = append(parts, "No value twice.")
	}
	if f.Unit != "" {
		parts = append(parts, "Unit: "+f.Unit+".")
	}
	if f.Input {
		parts = append(parts, "Relative to the file.")
	}
	if len(parts) == 0 {
		return ""
	}
	return " " + strings.Join(parts, " ")
}

func referenceTolerances() string {
	var b strings.Builder
	b.WriteString(`
## Default tolerances

Starting points, not guarantees. |got - reference| <= atol + rtol * |reference| must hold for every element (but for the
fraction max_breaches), and the cosine similarity of every sample must reach cosine_min.

| precision | atol | rtol | cosine_min | max_breaches |
| --- | --- | --- | --- | --- |
`)
	for _, p := range tolerancePrecisions {
		t := defaultTolerances[p]
		breaches := 0.0
		if t.MaxBreaches != nil {
			breaches = *t.MaxBreaches
		}
		fmt.Fprintf(&b, "| %s | %g | %g | %g | %g |\n", p, *t.Atol, *t.Rtol, *t.CosineMin, breaches)
	}
	return b.String()
}

const referenceIntro = `# Configuration

<!-- Generated from the table in internal/config/config.go by ` + "`make golden`" + `. -->

One YAML file describes a model and what is asked of it. It is read strictly: unknown keys, wrong types, duplicate keys
and values that contradict each other are errors, all listed at once with file:line:column, and exit with code 2 before
any stage runs.

- Precedence: defaults, then the file, then environment variables, then ` + "`--set`" + `.
  ` + "`TRTSHIP__EXPORT__OPSET=18`" + ` and ` + "`--set export.opset=18`" + ` set the same key. Values are YAML:
  ` + "`--set tensorrt.precisions='[fp32, fp16]'`" + `. A number is an index into a list:
  ` + "`--set tensorrt.profiles.0.inputs.x.max='[16, 3, 32, 32]'`" + `; double quotes keep a dot inside a key.
- Input paths are relative to the file. Output paths (the store, runs, ` + "`-o`" + `) are relative to the working directory.
- A dimension that is a name is dynamic; equal names have equal sizes. Every dynamic input needs a profile.
- ` + "`[]`" + ` below stands for any element of a list, ` + "`<name>`" + ` for a key of your own.
- Aliases are read, merge keys (` + "`<<`" + `) are not.

` + "`trtship config validate FILE`" + ` checks a file, ` + "`trtship config show FILE`" + ` prints it with all defaults filled in,
` + "`trtship config schema`" + ` prints a JSON schema for editors; ` + "`trtship init`" + ` writes a starter file that uses it.
`
