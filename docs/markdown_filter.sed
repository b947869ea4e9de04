# Doxygen reads the Markdown files through this filter. The files carry relative links, as GitHub wants them;
# Doxygen follows those to other .md files by itself, and the rest are rewritten here. Lines stay where they are.

# ![...](../docs/figures/x.svg): Doxygen finds figures by name.
s#](\(\.\./\)*\(docs/\)\{0,1\}figures/#](#g

# A term of the glossary: ../docs/glossary.md#term -> glossary.html#term (check_site.cmake checks that it exists).
s#](\(\.\./\)*\(docs/\)\{0,1\}glossary\.md\#\([A-Za-z0-9_-]*\))#](glossary.html\#\3)#g

# Another chapter with an anchor: GitHub's anchors are not Doxygen's, so the link goes to the page.
s#](\([^)\#:]*\.md\)\#[^)]*)#](\1)#g

# A source file that has a page: ../reference/contracts.hpp, or a neighbour. A missing file is a warning, so an error.
s#](\(\.\./\)*\(\(reference\|cuda\)/[^):]*\.\(hpp\|cpp\|cuh\|cu\)\))#](@ref \2)#g
s#](\(\./\)\{0,1\}\([^/):]*\.\(hpp\|cpp\|cuh\|cu\)\))#](@ref \2)#g

# Anything else of the project (folders, scripts, tests, templates) has no page: the text stays, the link goes.
s#\[\([^]]*\)\]([^):@]*\.\(sh\|cmake\|txt\|json\|sed\|cu\|cuh\|cpp\|hpp\))#\1#g
s#\[\([^]]*\)\]([^):@]*/)#\1#g
s#\[\([^]]*\)\](\(\.\./\)\{1,\}[a-z_]*)#\1#g

# Fold-outs. Doxygen 1.9.4 closes <details> at the first blank line, so it gets the tags as raw HTML.
s#^\(<details>\)\{0,1\}\(<summary>.*</summary>\)$#@htmlonly[block]\1\2@endhtmlonly#
s#^\(</\{0,1\}details>\)$#@htmlonly[block]\1@endhtmlonly#
