package lint

import (
	"encoding/json"
	"fmt"
	"strings"
)

// Document is the JSON form of a result.
type Document struct {
	Format   string    `json:"format"`
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Findings []Finding `json:"findings"`
}

// DocumentFormat is the tag of the JSON form.
const DocumentFormat = "trtship-lint/1"

// JSON returns findings as a document.
func JSON(found []Finding) ([]byte, error) {
	errors, warnings := Worst(found)
	if found == nil {
		found = []Finding{}
	}
	return json.MarshalIndent(Document{Format: DocumentFormat, Errors: errors, Warnings: warnings, Findings: found}, "", "  ")
}

// Text returns one line a finding and a summary.
func Text(found []Finding) string {
	var b strings.Builder
	for _, f := range found {
		fmt.Fprintln(&b, f)
	}
	errors, warnings := Worst(found)
	fmt.Fprintf(&b, "%d errors, %d warnings\n", errors, warnings)
	return b.String()
}

// Annotations returns GitHub workflow commands, one a finding. prefix is put in
// front of file names to make them relative to the checkout.
func Annotations(found []Finding, prefix string) string {
	level := map[Severity]string{Error: "error", Warning: "warning", Note: "notice"}
	escape := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	property := strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A", ":", "%3A", ",", "%2C")
	var b strings.Builder
	for _, f := range found {
		text := f.Text
		if f.Hint != "" {
			text += " (" + f.Hint + ")"
		}
		fmt.Fprintf(&b, "::%s file=%s", level[f.Severity], property.Replace(join(prefix, f.File)))
		if f.Pos.Line > 0 {
			fmt.Fprintf(&b, ",line=%d,col=%d", f.Pos.Line, f.Pos.Column)
		}
		fmt.Fprintf(&b, ",title=%s::%s\n", property.Replace(f.Rule), escape.Replace(text))
	}
	return b.String()
}

func join(prefix, file string) string {
	if prefix == "" || prefix == "." {
		return file
	}
	return strings.TrimSuffix(prefix, "/") + "/" + file
}

// sarif types: the parts of SARIF 2.1.0 that are written.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool    sarifTool     `json:"tool"`
		Results []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version,omitempty"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID         string            `json:"id"`
		Short      sarifText         `json:"shortDescription"`
		Full       sarifText         `json:"fullDescription"`
		Properties map[string]string `json:"properties,omitempty"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID    string          `json:"ruleId"`
		Level     string          `json:"level"`
		Message   sarifText       `json:"message"`
		Locations []sarifLocation `json:"locations"`
	}
	sarifLocation struct {
		Physical sarifPhysical `json:"physicalLocation"`
	}
	sarifPhysical struct {
		Artifact struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region *sarifRegion `json:"region,omitempty"`
	}
	sarifRegion struct {
		Line   int `json:"startLine"`
		Column int `json:"startColumn"`
	}
)

// SARIF returns findings as a SARIF 2.1.0 log. prefix is put in front of file
// names.
func SARIF(found []Finding, version, prefix string) ([]byte, error) {
	driver := sarifDriver{Name: "trtship lint", Version: version, InformationURI: "https://github.com/trtship/trtship", Rules: []sarifRule{}}
	for _, r := range Rules {
		rule := sarifRule{ID: r.ID, Short: sarifText{r.Title}, Full: sarifText{r.Title + " Decided by: " + string(r.Decider) + "."}}
		if r.Source != "" {
			rule.Properties = map[string]string{"source": r.Source}
		}
		driver.Rules = append(driver.Rules, rule)
	}
	run := sarifRun{Tool: sarifTool{driver}, Results: []sarifResult{}}
	for _, f := range found {
		text := f.Text
		if f.Hint != "" {
			text += " (" + f.Hint + ")"
		}
		var at sarifPhysical
		at.Artifact.URI = join(prefix, f.File)
		if f.Pos.Line > 0 {
			at.Region = &sarifRegion{f.Pos.Line, f.Pos.Column}
		}
		run.Results = append(run.Results, sarifResult{RuleID: f.Rule, Level: string(f.Severity), Message: sarifText{text}, Locations: []sarifLocation{{at}}})
	}
	return json.MarshalIndent(sarifLog{Schema: "https://json.schemastore.org/sarif-2.1.0.json", Version: "2.1.0", Runs: []sarifRun{run}}, "", "  ")
}
