# Builds the site:
#   cmake -DDOXYGEN=... -DDOXYFILE=... -DHTML=... -DMATHJAX=... -DSOURCE=<project> -DLADDERS=<folder> -P build_site.cmake
cmake_minimum_required(VERSION 3.25)

# From an empty folder, so that no page of an earlier build survives.
file(REMOVE_RECURSE "${HTML}")
file(MAKE_DIRECTORY "${HTML}")

# ---- The page header: Doxygen's own template of this version, plus the scripts of the theme --------------------
get_filename_component(work "${DOXYFILE}" DIRECTORY)
file(WRITE "${work}/header.html" "")  # the Doxyfile names it, so it must exist before the template is asked for
execute_process(COMMAND "${DOXYGEN}" -w html header.template.html footer.template.html style.template.css
                WORKING_DIRECTORY "${work}" RESULT_VARIABLE result OUTPUT_QUIET)
if(result)
  message(FATAL_ERROR "doxygen -w html failed: ${result}")
endif()
file(READ "${work}/header.template.html" header)
set(scripts [[
<meta name="color-scheme" content="light dark"/>
<script type="text/javascript" src="$relpath^doxygen-awesome-darkmode-toggle.js"></script>
<script type="text/javascript" src="$relpath^doxygen-awesome-fragment-copy-button.js"></script>
<script type="text/javascript" src="$relpath^doxygen-awesome-paragraph-link.js"></script>
<script type="text/javascript">
  DoxygenAwesomeDarkModeToggle.init()
  DoxygenAwesomeFragmentCopyButton.init()
  DoxygenAwesomeParagraphLink.init()
</script>
</head>]])
string(REPLACE "</head>" "${scripts}" header "${header}")
file(WRITE "${work}/header.html" "${header}")

# ---- The ladder pages: one per stage, made from the chapters that exist, so that nobody lists them by hand ------
include("${CMAKE_CURRENT_LIST_DIR}/ladder_pages.cmake")

# ---- No sentence that ends in a number at the beginning of a line: it would become a list ------------------------
file(GLOB_RECURSE texts "${SOURCE}/docs/*.md" "${SOURCE}/walkthrough/*.md")
foreach(text IN LISTS texts)
  file(STRINGS "${text}" lines REGEX "^ *[0-9][0-9]+[.] ")
  if(lines)
    message(FATAL_ERROR "${text}: this line begins like an item of a list: ${lines}")
  endif()
endforeach()

# ---- Pages ----------------------------------------------------------------------------------------------------
execute_process(COMMAND "${DOXYGEN}" "${DOXYFILE}" WORKING_DIRECTORY "${work}" RESULT_VARIABLE result)
if(result)
  message(FATAL_ERROR "Doxygen reported the problems above (exit ${result}); every warning is an error here.")
endif()

# ---- MathJax: the TeX reader and the SVG writer with one font, 2 MB of 50 --------------------------------------
foreach(part MathJax.js extensions jax/input/TeX jax/element jax/output/SVG)
  get_filename_component(folder "mathjax/${part}" DIRECTORY)
  # The packages install some of these as symbolic links; the site must hold the files.
  file(COPY "${MATHJAX}/${part}" DESTINATION "${HTML}/${folder}" FOLLOW_SYMLINK_CHAIN
       PATTERN "fonts/*" EXCLUDE)
endforeach()
file(COPY "${MATHJAX}/jax/output/SVG/fonts/TeX" DESTINATION "${HTML}/mathjax/jax/output/SVG/fonts")
