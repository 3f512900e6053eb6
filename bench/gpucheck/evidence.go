package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jstemmer/go-junit-report/v2/junit"

	"github.com/trtship/trtship/report"
)

// The verdicts of a row are those of a report.
const (
	pass = report.Pass
	fail = report.Fail
)

// Row is one thing that was shown on the GPU, or was not.
type Row struct {
	Area    string                   `json:"area"`    // what of trtship, e.g. "build"
	Subject string                   `json:"subject"` // of which model, precision or mode
	Verdict report.Verdict           `json:"verdict"`
	Detail  string                   `json:"detail"`
	Figures map[string]report.Number `json:"figures,omitempty"`
}

// Machine is where it was shown: no host name, no path, no GPU UUID.
type Machine struct {
	GPUs  []report.GPU      `json:"gpus"`
	Tools map[string]string `json:"tools"`
}

// Part is the file that a part writes.
type Part struct {
	Name    string  `json:"part"`
	Title   string  `json:"title"`
	Binary  string  `json:"binary"` // SHA-256 of the program that ran
	Machine Machine `json:"machine"`
	Seconds float64 `json:"seconds"`
	Rows    []Row   `json:"rows"`
}

// Evidence is what the parts together show: h200.json.
type Evidence struct {
	Command string  `json:"command"`
	Binary  string  `json:"binary"`
	Machine Machine `json:"machine"`
	Parts   []Part  `json:"parts"`
	Passed  int     `json:"passed"`
	Failed  int     `json:"failed"`
}

// mergeParts reads every part, refuses a mixture of binaries and absent parts,
// and writes h200.json and h200.xml.
func mergeParts(dir, evidence string) error {
	e := Evidence{Command: "make gpu-check"}
	var absent []string
	for _, p := range parts {
		text, err := os.ReadFile(filepath.Join(dir, p.name+".json"))
		if errors.Is(err, os.ErrNotExist) {
			absent = append(absent, p.name)
			continue
		}
		if err != nil {
			return err
		}
		var part Part
		if err := json.Unmarshal(text, &part); err != nil {
			return fmt.Errorf("part %s: %w", p.name, err)
		}
		if e.Binary == "" {
			e.Binary, e.Machine = part.Binary, part.Machine
		}
		if part.Binary != e.Binary {
			return fmt.Errorf("part %s was run by binary %.12s, the parts before it by %.12s: run it again", p.name, part.Binary, e.Binary)
		}
		if len(e.Machine.GPUs) == 0 {
			e.Machine = part.Machine // parts that run no pipeline do not know it
		}
		e.add(part)
	}
	if len(absent) > 0 {
		return fmt.Errorf("these parts are absent: %s", strings.Join(absent, ", "))
	}
	if err := os.MkdirAll(evidence, 0o755); err != nil {
		return err
	}
	if err := writeJSON(filepath.Join(evidence, "h200.json"), e); err != nil {
		return err
	}
	if err := e.writeJUnit(filepath.Join(evidence, "h200.xml")); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "%d rows hold, %d do not\n", e.Passed, e.Failed)
	return nil
}

func (e *Evidence) add(p Part) {
	e.Parts = append(e.Parts, p)
	for _, r := range p.Rows {
		if r.Verdict == pass {
			e.Passed++
		} else {
			e.Failed++
		}
	}
}

func (e *Evidence) writeJUnit(path string) error {
	var all junit.Testsuites
	for _, p := range e.Parts {
		suite := junit.Testsuite{Name: "gpucheck/" + p.Name, Time: fmt.Sprintf("%.3f", p.Seconds)}
		for _, r := range p.Rows {
			c := junit.Testcase{Name: r.Area + ": " + r.Subject, Classname: "gpucheck." + p.Name, Time: "0.000"}
			switch r.Verdict {
			case pass:
			case fail:
				c.Failure = &junit.Result{Message: r.Detail}
			default:
				c.Error = &junit.Result{Message: r.Detail, Type: string(r.Verdict)}
			}
			suite.AddTestcase(c)
		}
		all.AddSuite(suite)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if _, err := f.WriteString(xml.Header); err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(all.WriteXML(f), f.Close())
}
